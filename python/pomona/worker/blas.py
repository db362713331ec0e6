"""A fast float32 matrix product for MLX on Linux.

MLX's Linux wheel multiplies float32 matrices with a reference BLAS. A small library of ours, loaded
before mlx, takes over that one function with OpenBLAS (package scipy-openblas32) behind it.
Nothing here imports mlx at module level.
"""

import ctypes
import importlib.util
import os
import random
import re
import sys
from pathlib import Path
from typing import Any

_SHIM_NAME = "libpomona_blas.so"

_shim: ctypes.CDLL | None = None
_description = "MLX's own: not loaded"


class BlasError(RuntimeError):
    """The replaced matrix product is not in use, or it is wrong."""


def load(enabled: bool = True) -> str:
    """Take over MLX's matrix product; call before mlx is imported. Returns one line for the log.

    POMONA_BLAS=off in the environment switches it off as well.
    """
    global _description
    if _shim is None:
        _description = _load(enabled)
    return _description


def replaced() -> bool:
    """Whether MLX's matrix product comes from the library that `load` found."""
    return _shim is not None


def self_test() -> None:
    """Check one product against a plain sum and that it came through our library.

    Does nothing where `load` left MLX's own product in place. Raises BlasError.
    """
    if _shim is None:
        return
    import mlx.core as mx

    rows, depth, columns = 3, 37, 5
    draw = random.Random(0)
    a = [[draw.uniform(-1, 1) for _ in range(depth)] for _ in range(rows)]
    b = [[draw.uniform(-1, 1) for _ in range(depth)] for _ in range(columns)]
    before = _shim.pomona_blas_calls()
    with mx.stream(mx.cpu):
        product: Any = (mx.array(a) @ mx.array(b).T).tolist()
    if _shim.pomona_blas_calls() == before:
        raise BlasError("mlx did not use OpenBLAS although it was loaded first; set POMONA_BLAS=off")
    for i in range(rows):
        for j in range(columns):
            exact = sum(x * y for x, y in zip(a[i], b[j], strict=True))
            if not abs(product[i][j] - exact) < 1e-4:
                raise BlasError("OpenBLAS gave a wrong matrix product; set POMONA_BLAS=off")


def _load(enabled: bool) -> str:
    global _shim
    if sys.platform == "darwin":
        return "Accelerate"
    if not enabled:
        return "MLX's own: switched off"
    if os.environ.get("POMONA_BLAS", "").lower() in ("off", "0", "false", "no"):
        return "MLX's own: switched off by POMONA_BLAS"
    if "mlx.core" in sys.modules:
        return "MLX's own: mlx was imported before OpenBLAS could be loaded"
    openblas = _find_openblas()
    if openblas is None:
        return "MLX's own: the package scipy-openblas32 is not installed"
    shim_path = _find_shim()
    if shim_path is None:
        return f"MLX's own: {_SHIM_NAME} is missing beside the extension"
    try:
        shim = ctypes.CDLL(str(shim_path))
    except OSError as error:
        return f"MLX's own: {error}"
    shim.pomona_blas_init.argtypes = [ctypes.c_char_p]
    shim.pomona_blas_init.restype = ctypes.c_char_p
    problem = shim.pomona_blas_init(os.fsencode(openblas))
    if problem is not None:
        return f"MLX's own: {problem.decode()}"
    # Only now, with a target behind it, may the shim answer for cblas_sgemm.
    _shim = ctypes.CDLL(str(shim_path), ctypes.RTLD_GLOBAL)
    _shim.pomona_blas_calls.restype = ctypes.c_ulonglong
    return f"{_version(openblas)} (scipy-openblas32)"


def _find_shim() -> Path | None:
    """It lies beside the extension modules, which an editable install keeps apart from the sources."""
    spec = importlib.util.find_spec("pomona._ops")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).with_name(_SHIM_NAME)
    return path if path.exists() else None


def _find_openblas() -> Path | None:
    spec = importlib.util.find_spec("scipy_openblas32")
    if spec is None or spec.origin is None:
        return None
    return next(Path(spec.origin).parent.glob("lib/libscipy_openblas*.so"), None)


def _version(openblas: Path) -> str:
    get_config = ctypes.CDLL(str(openblas)).scipy_openblas_get_config
    get_config.restype = ctypes.c_char_p
    match = re.match(r"OpenBLAS \d+\.\d+\.\d+", get_config().decode())
    return match[0] if match else "OpenBLAS"
