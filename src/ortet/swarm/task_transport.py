"""How a task gets into another process: a command as it is, a function by its module's name.

What only lives in this process, a lambda or a closure, travels by value where cloudpickle is
installed and is refused elsewhere. To another host so does what a module defines that is not
installed: nobody knows which version of it lies there, if any.
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
"""The name under which a script is loaded in another process, as multiprocessing has it: what
stands below `if __name__ == "__main__":` is not run."""


class TaskPayload(msgspec.Struct, frozen=True):
    """A task or a score: a command, or a function as it travels."""

    label: str
    command: str | list[str] | None = None
    pickled: str = ""  # base64
    main: bool = False  # it needs the script of this process


def pack_task(task: Any, what: str, *, is_remote: bool = False) -> TaskPayload:
    """Invalid("bad_task") for what is neither a command nor a function another process can have;
    `far`: one of another host."""
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
        data = import_module("cloudpickle").dumps(function)  # an extra
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
    """The module of a function, or of an object's class, unless all hosts can have it alike."""
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
    """What it defines goes by value meanwhile."""
    try:
        cloudpickle = import_module("cloudpickle")
    except ImportError:  # which is told where it is used
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
    """Where the script of this process can be loaded from."""
    main = sys.modules[_MAIN]
    name = getattr(getattr(main, "__spec__", None), "name", None)
    if name and not name.endswith(_MAIN):
        return {"name": name}
    path = getattr(main, "__file__", None)
    return {"path": os.path.abspath(path)} if path and os.path.isfile(path) else None


def import_environment(*works: TaskPayload | None) -> dict[str, Any]:
    """What another process needs to find the same modules."""
    main = any(work.main for work in works if work is not None)
    here = os.getcwd()
    return {
        "path": [os.path.join(here, place) for place in sys.path],
        "argv": list(sys.argv),
        "main": _main_script() if main else None,
    }


def apply_import_environment(environment: dict[str, Any]) -> None:
    """In the other process: the same modules can be imported, and the script is loaded."""
    sys.path[:] = environment["path"]
    sys.argv[:] = environment["argv"]
    script = environment["main"]
    if script is None:
        return
    module = types.ModuleType(_MAIN_ALIAS)
    if "name" in script:
        found = runpy.run_module(script["name"], run_name=_MAIN_ALIAS, alter_sys=True)
    else:
        found = runpy.run_path(script["path"], run_name=_MAIN_ALIAS)
    module.__dict__.update(found)
    sys.modules[_MAIN] = sys.modules[_MAIN_ALIAS] = module


def unpack_task(work: TaskPayload | None) -> Any:
    """The function, or the command."""
    if work is None:
        return None
    if work.command is not None:
        return work.command
    return pickle.loads(base64.b64decode(work.pickled))
