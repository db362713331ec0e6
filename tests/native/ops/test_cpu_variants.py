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
    "test_choose.py",
    "test_linear.py",
    "test_logprobs.py",
    "test_update_and_attend.py",
    "test_update_and_gather.py",
    "test_in_place.py",
    "test_rows.py",
    "test_decoder_layer.py",
    "test_experts.py",
)


# Products of 1 and 30 rows with a 4-bit and a dense matrix, as a digest.
PRODUCTS = """
import hashlib
import mlx.core as mx
import numpy as np
from pomona import _ops

x, w = (mx.random.normal(shape, key=mx.random.key(n)) for n, shape in enumerate([(30, 832), (130, 832)]))
packed, scales, biases = mx.quantize(w, group_size=32, bits=4)
digest = hashlib.sha256()
for weights in (_ops.Weights(packed, scales, biases, group_size=32, bits=4), _ops.Weights(w)):
    for rows in (1, 30):
        digest.update(np.array(_ops.linear(x[:rows], weights)).tobytes())
print(digest.hexdigest())
"""
FUSED = {"avx2", "avx512"}  # the variants that multiply and add in one rounding, of one machine


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


def test_products_have_the_same_bits_in_every_fused_variant():
    digests = {variant: run(variant, "-c", PRODUCTS) for variant in VARIANTS if variant in FUSED}
    found = {done.stdout for done in digests.values() if "this machine lacks" not in done.stderr}
    assert len(found) <= 1
    assert all(digest.strip() for digest in found)


def test_an_unknown_variant_is_refused():
    assert "POMONA_CPU_VARIANT=mmx is not one of" in ask("mmx").stderr
