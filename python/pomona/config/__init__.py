"""What the server and the worker can be told: plain values, handed down from the command line."""

from pomona.config.settings import ServeSettings, WorkerOptions

__all__ = ["ServeSettings", "WorkerOptions"]
