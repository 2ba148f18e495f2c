"""Runs code cells in one namespace, and describes their results as plain data.

Standard library only, and compatible with old interpreters: the text of this file is sent to a
kernel.
"""

from __future__ import annotations

import ast
import importlib
import io
import json
import linecache
import math
import sys
import traceback
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Plain = dict[str, Any]

_MAX_REPR_CHARS = 100_000
_MAX_TRACE_CHARS = 64_000
_MAX_VALUE_BYTES = 16 << 20
_MAX_FRAMES = 100
_MAX_DEPTH = 200
_CELL_PREFIX = "<cell "
_OWN_MODULE_PREFIX = "<ortet "  # file name prefix of the kernel's own modules
_CO_COROUTINE = 0x80


class CellRunner:
    """The `__main__` module of an interpreter, in which cells run."""

    def __init__(self) -> None:
        self.module = types.ModuleType("__main__")
        self.module.__dict__["__builtins__"] = __builtins__
        sys.modules["__main__"] = self.module  # pickle looks here for objects that cells define
        self.count = 0
        self._loop: Any = None

    def run(self, code: str) -> Plain:
        """Run a cell. The result has `repr`, and `value` if the last value is plain data."""
        self.count += 1
        name = f"{_CELL_PREFIX}{self.count}>"
        linecache.cache[name] = (len(code), None, _lines(code), name)
        try:
            value = self._execute(code, name)
        except BaseException as error:
            return {"error": describe_error(error)}
        if value is None:
            return {}
        outcome: Plain = {"repr": safe_repr(value)}
        try:
            if _is_plain(value, _MAX_DEPTH) and len(json.dumps(value)) <= _MAX_VALUE_BYTES:
                outcome["value"] = value
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
        return outcome

    def reset_after_fork(self) -> None:
        """Forget the parent's event loop, whose descriptors the fork must not use."""
        self._loop = None

    def _execute(self, code: str, name: str) -> Any:
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree = compile(code, name, "exec", flags | ast.PyCF_ONLY_AST, dont_inherit=True)
        assert isinstance(tree, ast.Module)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        if tree.body:
            self._evaluate(compile(tree, name, "exec", flags, dont_inherit=True))
        if last is None:
            return None
        assert isinstance(last, ast.Expr)
        expression = ast.Expression(last.value)
        return self._evaluate(compile(expression, name, "eval", flags, dont_inherit=True))

    def _evaluate(self, code: types.CodeType) -> Any:
        result = eval(code, self.module.__dict__)
        if not code.co_flags & _CO_COROUTINE:
            return result
        # imported late: it takes megabytes in each fork
        asyncio = importlib.import_module("asyncio")
        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        task = self._loop.create_task(result)
        try:
            return self._loop.run_until_complete(task)
        except BaseException:
            if not task.done():  # interrupted: the task must not continue in the next cell
                task.cancel()
                self._loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
            raise


def describe_error(error: BaseException) -> Plain:
    """Describe an exception, with the frames from the cell on and the source line of each."""
    trace = error.__traceback__
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith(_CELL_PREFIX):
        trace = trace.tb_next
    frames: list[tuple[str, int, str, str]] = []
    for frame in traceback.extract_tb(trace, limit=-_MAX_FRAMES) if trace is not None else []:
        if not frame.filename.startswith(_OWN_MODULE_PREFIX):
            frames.append((frame.filename, frame.lineno or 0, frame.name, frame.line or ""))
    try:
        message = str(error)
    except Exception:
        message = "<an error whose text cannot be had>"
    try:
        description = traceback.TracebackException(type(error), error, trace)
        _remove_own_frames(description)
        text = "".join(description.format())
    except Exception:
        text = f"{type(error).__name__}: {message}\n"
    if len(text) > _MAX_TRACE_CHARS:
        half = _MAX_TRACE_CHARS // 2
        text = f"{text[:half]}\n[... {len(text) - 2 * half} characters cut ...]\n{text[-half:]}"
    return {
        "type": type(error).__name__,
        "message": message[:_MAX_REPR_CHARS],
        "frames": frames,
        "text": text,
    }


def _remove_own_frames(trace: Any) -> None:
    """Remove the frames of the kernel itself, for example its interrupt handler; in causes too."""
    queue, seen = [trace], set()
    while queue:
        exception = queue.pop()
        if exception is not None and id(exception) not in seen:
            seen.add(id(exception))
            exception.stack[:] = [
                f for f in exception.stack if not f.filename.startswith(_OWN_MODULE_PREFIX)
            ]
            queue += [
                exception.__cause__,
                exception.__context__,
                *(getattr(exception, "exceptions", None) or ()),
            ]


def _lines(code: str) -> list[str]:
    """Split code into lines as the compiler counts them.

    Every line keeps its line end, because the traceback module relies on that to mark columns.
    """
    lines = io.StringIO(code, newline=None).read().split("\n")
    return [f"{line}\n" for line in lines]


def safe_repr(value: Any) -> str:
    """Return the repr of a value, cut if it is long. A failing `__repr__` is described instead."""
    try:
        text = repr(value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return f"<{type(value).__name__} whose repr failed: {type(error).__name__}>"
    if len(text) > _MAX_REPR_CHARS:
        return f"{text[:_MAX_REPR_CHARS]}[... {len(text) - _MAX_REPR_CHARS} characters cut ...]"
    return text


def _is_plain(value: Any, max_depth: int) -> bool:
    """Return True if a value consists of exact JSON types and tuples, without subclasses."""
    kind = type(value)
    if kind is str:
        value.encode()  # a lone surrogate cannot be stored
        return True
    if value is None or kind is bool or (kind is float and math.isfinite(value)):
        return True
    if kind is int:
        return bool(value.bit_length() < 1024)
    if max_depth and kind in (list, tuple):
        return all(_is_plain(one, max_depth - 1) for one in value)
    if max_depth and kind is dict:
        return all(type(k) is str for k in value) and all(
            _is_plain(one, max_depth - 1) for pair in value.items() for one in pair
        )
    return False
