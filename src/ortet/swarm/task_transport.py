"""Sends tasks to other processes: commands as text, functions by import name or by value.

A lambda or closure exists only in this process. It is sent by value if cloudpickle is installed,
and refused otherwise. Functions for another host are sent by value if their module is not
installed. The other host may have no or another version of it.
"""

from __future__ import annotations

import base64
import os
import pickle
import runpy
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import msgspec

from ortet.errors import Invalid

_MAIN = "__main__"
_MAIN_ALIAS = "__mp_main__"
"""The module name under which a script is loaded in another process, as in multiprocessing.

Code below `if __name__ == "__main__":` does not run there.
"""


class TaskPayload(msgspec.Struct, frozen=True):
    """A task or score in transit: a command, or a pickled function."""

    label: str
    command: str | list[str] | None = None
    pickled: str = ""  # base64
    main: bool = False  # needs the main script of this process


def pack_task(task: Any, what: str, *, is_remote: bool = False) -> TaskPayload:
    """Pack a command or function for another process.

    Args:
        task: A command line, a list of words, or a function of (session, i).
        what: The parameter name for error messages.
        is_remote: The other process runs on another host.

    Raises:
        Invalid: "bad_task" if it is neither a command nor a function that can be sent.
    """
    if isinstance(task, str):
        if not task.strip() or "\0" in task:
            raise Invalid("bad_task", f"{what} is an empty command: give one, or a function")
        return TaskPayload(f"$ {task}", task)
    if callable(task):
        return _pack_function(task, what, is_remote=is_remote)
    if isinstance(task, Sequence) and not isinstance(task, bytes):
        words = list(task)
        if words and all(isinstance(word, str) for word in words):
            return TaskPayload(f"$ {words!r}", words)
    raise Invalid(
        "bad_task",
        f"{what} is {type(task).__name__}: give a function of (session, i), a command line or a "
        "list of its words",
    )


def _pack_function(function: Callable[..., Any], what: str, *, is_remote: bool) -> TaskPayload:
    label = (
        f"{getattr(function, '__module__', '')}:"
        f"{getattr(function, '__qualname__', repr(type(function)))}"
    )
    if is_remote and (module := _find_uninstalled_module(function)) is not None:
        with _pickle_module_by_value(module):
            return _pack_by_value(function, label, what, None)
    try:
        data = pickle.dumps(function)
    except Exception as error:
        return _pack_by_value(function, label, what, error)
    needs_main = _MAIN.encode() in data
    if needs_main and (is_remote or _main_script() is None):
        return _pack_by_value(function, label, what, None)
    return TaskPayload(label, pickled=base64.b64encode(data).decode(), main=needs_main)


def _pack_by_value(function: Any, label: str, what: str, error: Exception | None) -> TaskPayload:
    try:
        data = import_module("cloudpickle").dumps(function)  # an optional dependency
    except ImportError:
        raise Invalid(
            "bad_task",
            f"{what} {label} cannot be imported by another process: define it with def at the top "
            "of a module or script, or `pip install ortet[swarm]`, which sends it by value",
        ) from error
    except Exception as cause:
        raise Invalid(
            "bad_task",
            f"{what} {label} holds what cannot be sent to another process ({cause}): define it at "
            "the top of a module, and open there what it needs",
        ) from cause
    return TaskPayload(label, pickled=base64.b64encode(data).decode())


def _find_uninstalled_module(function: Callable[..., Any]) -> types.ModuleType | None:
    """Return the module of a function if it is not installed; None if all hosts can import it."""
    name = getattr(function, "__module__", None) or type(function).__module__
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if module is None or file is None:
        return None
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    real = os.path.realpath(file)
    return None if any(real.startswith(os.path.realpath(x) + "/") for x in places) else module


@contextmanager
def _pickle_module_by_value(module: types.ModuleType) -> Iterator[None]:
    """Within this block, pickle everything that `module` defines by value."""
    try:
        cloudpickle = import_module("cloudpickle")
    except ImportError:  # reported by _pack_by_value
        yield
        return
    known = module.__name__ in cloudpickle.list_registry_pickle_by_value()
    if not known:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        if not known:
            cloudpickle.unregister_pickle_by_value(module)


def _main_script() -> dict[str, str] | None:
    """Return the location from which the main script of this process can be loaded, or None."""
    main = sys.modules[_MAIN]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name and not name.endswith(_MAIN):
        return {"name": name}
    path = getattr(main, "__file__", None)
    return {"path": os.path.abspath(path)} if path and os.path.isfile(path) else None


def import_environment(*works: TaskPayload | None) -> dict[str, Any]:
    """Return what another process needs to import the same modules."""
    main = any(work.main for work in works if work is not None)
    here = os.getcwd()
    return {
        "path": [os.path.join(here, place) for place in sys.path],
        "argv": list(sys.argv),
        "main": _main_script() if main else None,
    }


def apply_import_environment(environment: dict[str, Any]) -> None:
    """In the other process, set up imports and load the main script."""
    sys.path[:] = environment["path"]
    sys.argv[:] = environment["argv"]
    script = environment["main"]
    if script is None:
        return
    module = types.ModuleType(_MAIN_ALIAS)
    if "name" in script:
        variables = runpy.run_module(script["name"], run_name=_MAIN_ALIAS, alter_sys=True)
    else:
        variables = runpy.run_path(script["path"], run_name=_MAIN_ALIAS)
    module.__dict__.update(variables)
    sys.modules[_MAIN] = sys.modules[_MAIN_ALIAS] = module


def unpack_task(work: TaskPayload | None) -> Any:
    """Return the function or command of a payload."""
    if work is None:
        return None
    if work.command is not None:
        return work.command
    return pickle.loads(base64.b64decode(work.pickled))
