"""Fixtures of all tests: tiny models, and the embedded model where its wheel is installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest
from tests import tiny_models

from pomona.models import ModelError, resolve_model
from pomona.worker import blas

blas.load()  # as a worker does; before any test module imports mlx

# How long an example takes says more about the machine's other work than about us.
hypothesis.settings.register_profile("pomona", deadline=None)
hypothesis.settings.load_profile("pomona")


@pytest.fixture(scope="session")
def tiny_model() -> Callable[[str], Path]:
    """tiny_model("llama") is the folder of a tiny random checkpoint of that architecture."""
    return tiny_models.tiny_model


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of the embedded model, converted into the user's cache on first use."""
    try:
        return resolve_model().path
    except ModelError as error:
        if "pip install" not in str(error):
            raise
        pytest.skip(str(error))
