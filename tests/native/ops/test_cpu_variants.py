"""Every kernel variant of this machine passes the tests of the primitives."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import mlx.core  # noqa: F401 (loads the library that _ops is linked to)
import pytest

from pomona import _ops

VARIANTS = {"x86_64": ("generic", "avx2", "avx512"), "AMD64": ("generic", "avx2", "avx512")}.get(
    platform.machine(), ("neon",)
)
FILES = (
    "test_attention_splits.py",
    "test_update_and_attend.py",
    "test_update_and_gather.py",
    "test_in_place.py",
)


def run(variant: str, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env=os.environ | {"POMONA_CPU_VARIANT": variant},
        capture_output=True,
        text=True,
        check=False,
    )


def ask(variant: str) -> subprocess.CompletedProcess[str]:
    return run(variant, "-c", "import mlx.core; from pomona import _ops; print(_ops.cpu_variant())")


def test_the_best_variant_is_chosen():
    assert _ops.cpu_variant() in VARIANTS


@pytest.mark.parametrize("variant", VARIANTS)
def test_variant(variant):
    asked = ask(variant)
    if "this machine lacks" in asked.stderr:
        pytest.skip(f"this machine lacks {variant}")
    assert asked.stdout.strip() == variant
    if variant == os.environ.get("POMONA_CPU_VARIANT", _ops.cpu_variant()):
        return  # the other files run it
    here = Path(__file__).parent
    tested = run(
        variant, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *(str(here / f) for f in FILES)
    )
    assert tested.returncode == 0, tested.stdout


def test_an_unknown_variant_is_refused():
    assert "POMONA_CPU_VARIANT=mmx is not one of" in ask("mmx").stderr
