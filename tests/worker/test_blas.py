"""OpenBLAS under MLX. Which library answers is decided once per process, so each test has its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="macOS has Accelerate")

PRODUCT = """
import mlx.core as mx
mx.eval(mx.ones((8, 16)) @ mx.ones((16, 8)))
"""


def python(program: str, **environment: str) -> str:
    """What the program printed."""
    clean = {name: value for name, value in os.environ.items() if name != "POMONA_BLAS"}
    done = subprocess.run(
        [sys.executable, "-c", "from pomona.worker import blas\n" + program],
        env=clean | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@linux_only
def test_openblas_takes_over():
    printed = python(f"print(blas.load()){PRODUCT}print(blas._shim.pomona_blas_calls())\nblas.self_test()")
    description, calls = printed.splitlines()
    assert description.startswith("OpenBLAS 0.3.")
    assert description.endswith(" (scipy-openblas32)")
    assert int(calls) == 1


@linux_only
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 8, 9, 64])
def test_products_are_right(rows):
    program = f"""
blas.load()
import mlx.core as mx, numpy as np
a, b = (mx.random.normal(shape) for shape in (({rows}, 300), (70, 300)))
exact = np.array(a, np.float64) @ np.array(b, np.float64).T
for product in (a @ b.T, (b @ a.T).T, a @ mx.contiguous(b.T), mx.addmm(mx.zeros(70), a, b.T)):
    assert np.abs(np.array(product) - exact).max() < 1e-4
c = mx.random.normal((70,))
assert np.abs(np.array(mx.addmm(c, a, b.T, alpha=0.5, beta=2.0)) - 0.5 * exact - 2 * np.array(c)).max() < 1e-4
"""
    python(program)


@linux_only
@pytest.mark.parametrize("depth", [16, 300, 2048])
def test_a_row_of_few_gives_the_same_bits_as_alone(depth):
    program = f"""
blas.load()
import mlx.core as mx
print("avx512f" in open("/proc/cpuinfo").read())
x, w = mx.random.normal((8, {depth})), mx.random.normal((101, {depth}))
alone = mx.concatenate([x[i : i + 1] @ w.T for i in range(8)])
print(all(mx.array_equal(x[:n] @ w.T, alone[:n]) for n in range(2, 9)))
"""
    supported, equal = python(program).splitlines()
    if supported == "False":
        pytest.skip("the path of ours for few rows needs AVX-512")
    assert equal == "True"


@linux_only
def test_the_number_of_threads_changes_no_bit():
    program = """
{limit}
blas.load()
import hashlib, mlx.core as mx, numpy as np
for m, n, k in ((1, 4000, 300), (8, 1500, 700), (9, 1500, 300), (200, 700, 300), (900, 90, 300)):
    x, w = (mx.random.normal(shape, key=mx.random.key(m)) for shape in ((m, k), (n, k)))
    for product in (x @ w.T, x @ mx.contiguous(w.T)):
        print(hashlib.sha256(np.array(product)).hexdigest())
"""
    one = "import os; os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])"
    assert python(program.format(limit="")) == python(program.format(limit=one))


@linux_only
def test_loading_twice_is_harmless():
    first, second = python("print(blas.load())\nprint(blas.load())\nblas.self_test()").splitlines()
    assert first == second


@linux_only
@pytest.mark.parametrize(
    ("argument", "environment", "reason"),
    [("False", {}, "switched off"), ("True", {"POMONA_BLAS": "off"}, "switched off by POMONA_BLAS")],
)
def test_switched_off(argument, environment, reason):
    program = f"print(blas.load({argument})){PRODUCT}blas.self_test()\nassert blas._shim is None"
    assert python(program, **environment) == f"MLX's own: {reason}"


@linux_only
def test_too_late():
    program = f"{PRODUCT}print(blas.load())\nblas.self_test()"
    assert python(program) == "MLX's own: mlx was imported before OpenBLAS could be loaded"


@linux_only
def test_missing_parts_are_named():
    program = "blas._find_shim = lambda: None\nprint(blas.load())"
    assert python(program) == "MLX's own: libpomona_blas.so is missing beside the extension"
    program = "blas._find_openblas = lambda: None\nprint(blas.load())"
    assert python(program) == "MLX's own: the package scipy-openblas32 is not installed"


@linux_only
def test_a_broken_openblas_leaves_mlx_its_own():
    program = f"""
from pathlib import Path
blas._find_openblas = lambda: Path('/nowhere/libscipy_openblas.so')
print(blas.load()){PRODUCT}blas.self_test()"""
    printed = python(program)
    assert printed.startswith("MLX's own: ")
    assert "/nowhere/libscipy_openblas.so" in printed


@linux_only
def test_self_test_notices_that_mlx_goes_elsewhere():
    program = f"""{PRODUCT}
class Idle:
    pomona_blas_calls = staticmethod(lambda: 7)
blas._shim = Idle
try:
    blas.self_test()
except blas.BlasError as error:
    print(error)"""
    assert "set POMONA_BLAS=off" in python(program)


@pytest.mark.skipif(sys.platform != "darwin", reason="macOS only")
def test_macos_keeps_accelerate():
    assert python("print(blas.load())\nblas.self_test()") == "Accelerate"
