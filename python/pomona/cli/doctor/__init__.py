"""`pomona doctor`: looks at the machine, the set-up and the engine."""

from pomona.cli.doctor.command import doctor

__all__ = ["doctor"]
