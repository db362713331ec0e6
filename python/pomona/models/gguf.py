"""The header of a GGUF file: its metadata and the list of its tensors, read without mlx.

Also knows which files our importer can read, so that a wrong one is refused before anything is started.
The format: a magic number, version, counts, key-value pairs, tensor descriptions, padding, tensor data.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pomona.models.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
BLOCK = 32  # elements that share a scale, in every type we read

# ggml type: (name, bytes per BLOCK elements, bytes per BLOCK elements after the conversion).
# Quantized weights keep their bits and get a float32 scale and bias per block; the rest becomes float32.
READABLE = {
    0: ("F32", 4 * BLOCK, 4 * BLOCK),
    1: ("F16", 2 * BLOCK, 4 * BLOCK),
    2: ("Q4_0", 18, 16 + 8),
    3: ("Q4_1", 20, 16 + 8),
    8: ("Q8_0", 34, 32 + 8),
}
OTHER_NAMES = {
    6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K",
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16",
    34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class TensorInfo:
    name: str
    shape: tuple[int, ...]  # row-major, the last one adjacent in memory
    type: int
    offset: int  # from the start of the file

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def type_name(self) -> str:
        return READABLE[self.type][0] if self.type in READABLE else OTHER_NAMES.get(self.type, "unknown")

    @property
    def stored_bytes(self) -> int:
        return self.elements * READABLE[self.type][1] // BLOCK

    @property
    def converted_bytes(self) -> int:
        return self.elements * READABLE[self.type][2] // BLOCK


@dataclass(frozen=True, slots=True)
class GgufHeader:
    path: Path
    metadata: dict[str, Any]
    tensors: tuple[TensorInfo, ...]

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", "unknown"))

    @property
    def converted_bytes(self) -> int:
        return sum(tensor.converted_bytes for tensor in self.tensors)

    def get(self, key: str) -> Any:
        """A value the importer cannot do without."""
        try:
            return self.metadata[key]
        except KeyError:
            raise ModelError(f"{self.path} has no {key} in its metadata; fetch another GGUF.") from None


def read_header(path: Path) -> GgufHeader:
    """Read and check the header: types we can read, tensors inside the file."""
    try:
        with path.open("rb") as file:
            header = _Reader(path, file).header()
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}); check the path.") from error
    size = path.stat().st_size
    for tensor in header.tensors:
        if tensor.type not in READABLE:
            raise ModelError(
                f"{path} holds {tensor.type_name} tensors ({tensor.name} is one); pomona reads GGUF files of "
                f"{', '.join(name for name, _, _ in READABLE.values())}: fetch such a file, or an MLX folder."
            )
        if tensor.offset + tensor.stored_bytes > size:
            raise ModelError(f"{path} is cut short: {tensor.name} lies beyond its end; fetch it again.")
    return header


class _Reader:
    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file

    def header(self) -> GgufHeader:
        if self._file.read(4) != MAGIC:
            raise ModelError(f"{self._path} is not a GGUF file; give a model folder or a .gguf file.")
        version = self._scalar("I")
        if version not in VERSIONS:
            raise ModelError(
                f"{self._path} has GGUF version {version}, pomona reads 2 and 3; fetch a newer one."
            )
        tensor_count, value_count = self._scalar("Q"), self._scalar("Q")
        metadata = {}
        for _ in range(value_count):
            key = self._string()
            metadata[key] = self._value(self._scalar("I"))
        described = [self._tensor() for _ in range(tensor_count)]
        alignment = int(metadata.get("general.alignment", DEFAULT_ALIGNMENT))
        start = -(-self._file.tell() // alignment) * alignment
        tensors = tuple(TensorInfo(t.name, t.shape, t.type, start + t.offset) for t in described)
        return GgufHeader(self._path, metadata, tensors)

    def _tensor(self) -> TensorInfo:
        name = self._string()
        dimensions = [self._scalar("Q") for _ in range(self._scalar("I"))]
        return TensorInfo(name, tuple(reversed(dimensions)), self._scalar("I"), self._scalar("Q"))

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            return self._scalar(self._format(kind))
        kind, length = self._scalar("I"), self._scalar("Q")
        if kind in (STRING, ARRAY):
            return [self._value(kind) for _ in range(length)]
        dtype = np.dtype("<" + self._format(kind))
        return np.frombuffer(self._bytes(length * dtype.itemsize), dtype=dtype).tolist()

    def _format(self, kind: int) -> str:
        if kind not in SCALARS:
            raise ModelError(f"{self._path} has metadata of an unknown kind ({kind}); fetch it again.")
        return SCALARS[kind]

    def _string(self) -> str:
        return self._bytes(self._scalar("Q")).decode("utf-8", errors="replace")

    def _scalar(self, format: str) -> Any:
        (value,) = struct.unpack("<" + format, self._bytes(struct.calcsize("<" + format)))
        return value

    def _bytes(self, count: int) -> bytes:
        # A damaged length must not make us ask for that much memory.
        data = self._file.read(count) if count < 1 << 32 else b""
        if len(data) != count:
            raise ModelError(f"{self._path} is cut short or damaged: its header ends early; fetch it again.")
        return data
