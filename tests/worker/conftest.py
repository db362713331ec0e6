"""Prints how often the margin rule of the equality tests was needed."""

from __future__ import annotations

import pytest
from tests.worker import harness


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    count = harness.margin_count
    if count.tokens:
        terminalreporter.write_line(
            f"equality with mlx-lm: {count.tokens} tokens, {count.exceptions} differ within the margin"
        )
