"""Entry point of a worker process: `python -m pomona.worker --fd N --options JSON`.

The BLAS is loaded first and everything that imports mlx after it.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import signal
import socket
import sys

import msgspec

from pomona.config import WorkerOptions
from pomona.link.messages import LoadFailed
from pomona.worker import blas
from pomona.worker.connection import Connection, ConnectionLostError, die_with_server, heartbeats

# The server's log reads the level and the logger from this.
LOG_FORMAT = "%(levelname)s:%(name)s: %(message)s"


def main() -> int:
    parser = argparse.ArgumentParser(prog="pomona.worker")
    parser.add_argument("--fd", type=int, required=True, help="socket inherited from the server")
    parser.add_argument("--options", required=True, help="WorkerOptions as JSON")
    arguments = parser.parse_args()
    options = msgspec.json.decode(arguments.options, type=WorkerOptions)
    logging.basicConfig(level=options.log_level.upper(), stream=sys.stderr, format=LOG_FORMAT)
    faulthandler.enable()
    die_with_server()
    # Ctrl-C goes to the whole process group; the server decides when the worker ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection = Connection(socket.socket(fileno=arguments.fd))
    try:
        return serve(connection, options)
    except ConnectionLostError:
        return 0


def serve(connection: Connection, options: WorkerOptions) -> int:
    with heartbeats(connection):
        blas_note = blas.load(options.blas)
        # These import mlx, which binds its BLAS at that moment.
        from pomona.worker import selftest
        from pomona.worker.model import ModelLoadError, load
        from pomona.worker.service import Service, make_engine

        try:
            loaded = load(options)
        except ModelLoadError as error:
            connection.send(LoadFailed(str(error)))
            return 1
        look_ahead = options.look_ahead
        if look_ahead and (problem := selftest.check_slab_stays_in_place()):
            loaded.notes.append(f"look-ahead is off: {problem}")
            look_ahead = False
        service = Service(connection, make_engine(loaded, options, look_ahead))
    service.run(loaded, options, blas_note)
    return 0


if __name__ == "__main__":
    sys.exit(main())
