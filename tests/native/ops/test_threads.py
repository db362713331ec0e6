"""POMONA_CPU_THREADS, and the pool that _ops shares with the matrix product."""

import os
import subprocess
import sys

import pytest


def run(code: str, threads: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"POMONA_CPU_THREADS": threads},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("threads", ["0", "-2", "all", "1.5", "100000"])
def test_a_wrong_number_of_threads_is_refused_when_the_module_is_loaded(threads):
    loaded = run("import mlx.core, pomona._ops", threads)
    assert f"POMONA_CPU_THREADS={threads} is not a number of threads from 1 to" in loaded.stderr


# Prints how many threads wait for kernels after a product and after attention, both large enough to
# be shared out.
COUNT_THREADS = """
import glob, sys
from pomona.worker import blas
blas.load()
import mlx.core as mx
import numpy as np
from pomona import _ops
if not blas.replaced():
    sys.exit(77)

def workers():
    return sum(open(name).read() == "pomona kernels\\n" for name in glob.glob("/proc/self/task/*/comm"))

mx.eval(mx.ones((400, 400)) @ mx.ones((400, 400)))
after_product = workers()
rows = np.arange(256, dtype=np.int32)
x = mx.ones((1, 4, 256, 64))
slab = _ops.Slab(4, 64, 4, 64, 4, 64, mx.float32)
table = _ops.StepTable(64, rows[None, :4].copy(), rows * 0, rows + 1, rows, np.zeros((0, 2), np.int32))
mx.eval(_ops.update_and_attend(x, x, x, slab, table, 1.0))
print(after_product, workers())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the matrix product is replaced on Linux only")
def test_the_matrix_product_uses_the_same_threads():
    threads = len(os.sched_getaffinity(0))
    counted = run(COUNT_THREADS, str(threads))
    if counted.returncode == 77:
        pytest.skip("the matrix product is not replaced here")
    assert counted.stdout.split() == [str(threads - 1)] * 2, counted.stderr
