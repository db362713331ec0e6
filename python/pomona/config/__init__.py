"""What the server and the worker can be told: each setting declared once, values handed down."""

from pomona.config.schema import ServeSettings, WorkerOptions

__all__ = ["ServeSettings", "WorkerOptions"]
