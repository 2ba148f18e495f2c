"""Read model weights from a safetensors file with mmap.

This is a module of its own because `minilm` and `wordllama` share it.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortet._util.structs import thread_safe_struct
from ortet.errors import Corrupt

_TYPES = {"F16": np.float16, "F32": np.float32, "I64": np.int64}


class _Tensor(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def read_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """Return read-only arrays by name. Processes share the pages; unused ones are not read.

    Raises:
        Corrupt: kind "bad_weights", if the file is not a safetensors file.
    """
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    start = 8 + int.from_bytes(data[:8], "little")
    try:
        raw = msgspec.json.decode(data[8:start], type=dict[str, msgspec.Raw])
        raw.pop("__metadata__", None)
        found = {
            name: msgspec.json.decode(one, type=thread_safe_struct(_Tensor))
            for name, one in raw.items()
        }
        return {name: _array(data, start, tensor) for name, tensor in found.items()}
    except (msgspec.DecodeError, KeyError, ValueError) as error:
        raise Corrupt(
            "bad_weights", f"{path} holds no weights ({error}): install its package again"
        ) from error


def _array(data: mmap.mmap, start: int, tensor: _Tensor) -> NDArray[Any]:
    kind = np.dtype(_TYPES[tensor.dtype])
    begin, end = tensor.data_offsets
    flat = np.frombuffer(data, kind, (end - begin) // kind.itemsize, start + begin)
    return flat.reshape(tensor.shape)
