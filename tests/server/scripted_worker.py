"""A worker without a model: it speaks the real frames and does what the last user message says.

    say TEXT      answer TEXT, one token a frame
    begin TEXT    answer TEXT, then nothing more until cancelled or released
    hang          report half of the prompt, then nothing more until cancelled or released
    release       end all held rows, then answer "released"
    await-file F  answer "found" once the file F is in the model folder
    await-cancel  answer "cancelled" once a row has been cancelled
    fail          end with an error
    die           exit at once
    hang-up       close the connection and stay
    sampling      answer with the sampling parameters and max_tokens

Modes (first argument) change the start and the end: ready, load-failed, exit, stubborn (does not stop when
told), stuck (says that its engine makes no progress), traceback, once (loads the first time only).
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
from tokenizers import Tokenizer

from pomona.config import WorkerOptions
from pomona.link.framing import FrameBuffer, encode
from pomona.link.messages import (
    Cancel,
    FinishReason,
    FromWorker,
    Heartbeat,
    Loaded,
    LoadFailed,
    ModelInfo,
    PoolStats,
    RowUpdate,
    StepOutput,
    Stop,
    Submit,
    ToWorker,
)

MODES = ["ready", "load-failed", "exit", "stubborn", "stuck", "traceback", "once"]
CACHED_TOKENS = 3
CONTEXT_TOKENS = 2000
HEARTBEAT_S = 0.05
INFO = ModelInfo(
    model_type="scripted",
    context_tokens=CONTEXT_TOKENS,
    pool_tokens=100_000,
    block_size=64,
    reader="paged",
    recurrent=False,
    dtype="float32",
    vocab_size=512,
    weights_bytes=0,
    kv_bytes_per_token=0,
    look_ahead=False,
    blas="none",
)


class ScriptedWorker:
    def __init__(self, sock: socket.socket, options: WorkerOptions, mode: str) -> None:
        self._sock = sock
        self._tokenizer = Tokenizer.from_file(str(Path(options.model) / "tokenizer.json"))
        self._stubborn = mode == "stubborn"
        self._idle_s = 1000.0 if mode == "stuck" else 0.0
        self._held: dict[int, Submit] = {}
        self._cancels = 0
        self._awaiting_cancel: list[int] = []
        self._awaiting_file: dict[int, Path] = {}
        self._folder = Path(options.model)

    def run(self) -> None:
        self._send(Loaded(INFO))
        for message in self._messages():
            match message:
                case Submit():
                    self._answer(message)
                case Cancel(id=row_id):
                    self._held.pop(row_id, None)
                    self._cancels += 1
                    self._answer_awaiting()
                case Stop() if not self._stubborn:
                    return

    def _messages(self) -> Iterator[ToWorker]:
        decoder = msgspec.msgpack.Decoder(ToWorker)
        buffer = FrameBuffer()
        while True:
            self._send(Heartbeat(self._idle_s, len(self._held), 0, PoolStats(10, 0, 0, 10, 0), 0, 0, 0, 0))
            self._answer_files()
            if not select.select([self._sock], [], [], HEARTBEAT_S)[0]:
                continue
            data = self._sock.recv(1 << 20)
            if not data:
                return
            for frame in buffer.feed(data):
                yield decoder.decode(frame)

    def _answer(self, row: Submit) -> None:
        command, _, argument = self._last_user_text(row).partition(" ")
        match command:
            case "say":
                self._say(row, argument)
            case "begin":
                self._start(row)
                self._tokens(row, argument)
                self._held[row.id] = row
            case "hang":
                self._update(RowUpdate(row.id, prompt_done=len(row.prompt()) // 2))
                self._held[row.id] = row
            case "release":
                for row_id in self._held:
                    self._update(RowUpdate(row_id, finish=FinishReason.STOP))
                self._held.clear()
                self._say(row, "released")
            case "await-file":
                self._start(row)
                self._awaiting_file[row.id] = self._folder / argument
            case "await-cancel":
                self._awaiting_cancel.append(row.id)
                self._answer_awaiting()
            case "fail":
                self._update(RowUpdate(row.id, finish=FinishReason.ERROR, error="the model broke"))
            case "die":
                os._exit(7)
            case "hang-up":
                self._sock.close()
                signal.pause()
            case "sampling":
                values = {name: getattr(row.sampling, name) for name in row.sampling.__struct_fields__}
                values["max_tokens"] = row.max_tokens
                self._say(row, json.dumps(values))
            case _:
                raise ValueError(f"unknown command {command!r}")

    def _answer_files(self) -> None:
        found = [row_id for row_id, path in self._awaiting_file.items() if path.exists()]
        for row_id in found:
            del self._awaiting_file[row_id]
            self._end_with(row_id, "found")

    def _answer_awaiting(self) -> None:
        while self._cancels and self._awaiting_cancel:
            self._cancels -= 1
            self._end_with(self._awaiting_cancel.pop(), "cancelled")

    def _end_with(self, row_id: int, text: str) -> None:
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        self._update(RowUpdate(row_id, tokens=ids, finish=FinishReason.STOP))

    def _say(self, row: Submit, text: str) -> None:
        self._start(row)
        whole = self._tokens(row, text)
        finish = FinishReason.STOP if whole else FinishReason.LENGTH
        self._update(RowUpdate(row.id, finish=finish))

    def _start(self, row: Submit) -> None:
        prompt = len(row.prompt())
        self._update(RowUpdate(row.id, prompt_done=prompt, cached_tokens=min(CACHED_TOKENS, prompt)))

    def _tokens(self, row: Submit, text: str) -> bool:
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        for id_ in ids[: row.max_tokens]:
            self._update(RowUpdate(row.id, tokens=[id_]))
        return len(ids) < row.max_tokens

    def _last_user_text(self, row: Submit) -> str:
        text = self._tokenizer.decode(row.prompt().tolist(), skip_special_tokens=False)
        return text.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]

    def _update(self, update: RowUpdate) -> None:
        self._send(StepOutput([update]))

    def _send(self, message: FromWorker) -> None:
        self._sock.sendall(encode(message))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--options", required=True)
    arguments = parser.parse_args()
    sock = socket.socket(fileno=arguments.fd)
    options = msgspec.json.decode(arguments.options, type=WorkerOptions)
    if arguments.mode == "exit":
        return 3
    if arguments.mode == "traceback":
        raise ValueError("broken at once")
    if arguments.mode == "load-failed" or (arguments.mode == "once" and not first_time(options)):
        sock.sendall(encode(LoadFailed("the weights are not there")))
        return 1
    if arguments.mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ScriptedWorker(sock, options, arguments.mode).run()
    return 0


def first_time(options: WorkerOptions) -> bool:
    mark = Path(options.model) / "loaded-once"
    if mark.exists():
        return False
    mark.touch()
    return True


if __name__ == "__main__":
    sys.exit(main())
