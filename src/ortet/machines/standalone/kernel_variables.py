"""Saves and loads the variables of a kernel: each one is pickled separately.

Standard library only, and compatible with old interpreters: the text of this file is sent to a
kernel. Only a kernel unpickles; the hub passes the bytes on without reading them.
"""

from __future__ import annotations

import importlib
import io
import os
import pickle
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Plain = dict[str, Any]

_PROTOCOL = 5


class _TooLarge(Exception):
    """The pickle exceeds the size limit."""


class _BoundedBuffer(io.BytesIO):
    max_bytes = 0

    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > self.max_bytes:
            raise _TooLarge
        return super().write(data)


class _StrictPickler(pickle.Pickler):
    """Refuses objects that would be stored as a name that exists only in this interpreter."""

    def reducer_override(self, obj: Any) -> Any:
        own = isinstance(obj, (type, types.FunctionType))
        if own and getattr(obj, "__module__", None) == "__main__":
            raise pickle.PicklingError(
                f"{obj.__qualname__} is defined in a cell: define it in a module, or install "
                "cloudpickle where the kernel runs"
            )
        return NotImplemented


def save(namespace: Plain, names: list[str], fds: list[int], max_bytes: int) -> Plain:
    """Pickle variables one after another into `fds[0]`, if given.

    Returns the name, type and size of each saved variable, and the variables that could not be
    saved.
    """
    saved: list[Plain] = []
    lost: list[Plain] = []
    for name in names:
        if name not in namespace:
            lost.append({"name": name, "type": "", "why": "there is no such variable"})
            continue
        value = namespace[name]
        variable = {"name": name, "type": type(value).__name__}
        try:
            data = _pickle(value, max_bytes)
        except _TooLarge:
            lost.append(
                {**variable, "why": f"it and those before it take more than {max_bytes} bytes"}
            )
            continue
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            why = str(error)[:500] or type(error).__name__
            lost.append({**variable, "why": why})
            continue
        max_bytes -= len(data)
        if fds:
            view = memoryview(data)
            while view:
                view = view[os.write(fds[0], view) :]
        saved.append({**variable, "size": len(data)})
    return {"kept": saved, "lost": lost}


def load(namespace: Plain, variables: list[Plain], fds: list[int]) -> Plain:
    """Unpickle variables into the namespace, and return those that failed, each with the reason."""
    lost: list[Plain] = []
    with os.fdopen(os.dup(fds[0]), "rb") as file:
        for variable in variables:
            data = file.read(variable["size"])
            try:
                namespace[variable["name"]] = pickle.loads(data)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                why = f"{type(error).__name__}: {error}"[:500]
                lost.append({"name": variable["name"], "type": variable["type"], "why": why})
    return {"lost": lost}


def _pickle(value: Any, max_bytes: int) -> bytes:
    out = _BoundedBuffer()
    out.max_bytes = max_bytes
    try:
        # if it is installed where the kernel runs
        make = importlib.import_module("cloudpickle").Pickler
    except ImportError:
        make = _StrictPickler
    make(out, protocol=_PROTOCOL).dump(value)
    return out.getvalue()
