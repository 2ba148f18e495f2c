"""Actions: declaration of functions that agents call, idempotency keys and plain data.

`effects.py` runs actions. This module has no store access.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, TypeVar, overload

import msgspec

from ortet._util.codec import encode
from ortet._util.validation import TEXT, check_text, optional
from ortet.errors import Conflict, Invalid, NotFound, Unsettled
from ortet.journal.events import check_plain

P = ParamSpec("P")
R = TypeVar("R")

Replay = Literal["pure", "recorded", "idempotent", "once"]
KeyScope = Literal["family", "timeline"]
REPLAYS = ("pure", "recorded", "idempotent", "once")
_MARK = "__ortet_action__"
_MAX_PLAIN_BYTES = 256 * 1024


class Action(msgspec.Struct, frozen=True):
    """How a function that agents call may be repeated.

    - `pure`: run it again freely.
    - `recorded`: return the recorded outcome.
    - `idempotent`: run it again with the same key.
    - `once`: never run it again.
    """

    name: str
    replay: Replay = "recorded"
    key: str = ""
    scope: KeyScope = "family"


@overload
def action(name: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def action(
    name: str = "", *, replay: Replay = "recorded", key: str = "", scope: KeyScope = "family"
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def action(
    name: Any = "", *, replay: Replay = "recorded", key: str = "", scope: KeyScope = "family"
) -> Any:
    """Mark a function as an action. Calling the function directly works as before.

    Use `@ortet.action`, or `@ortet.action(replay="once", key="mail-{to}")`. The key is filled with
    the argument `to` of each call.
    """
    check_text(key=key, replay=replay, scope=scope)
    _check(replay, scope)
    if not callable(name):
        check_text(name=name)

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        setattr(function, _MARK, Action(said or _name_of(function), replay, key, scope))
        return function

    said = name if isinstance(name, str) else ""
    return mark(name) if callable(name) else mark


def describe(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    name: str | None = None,
    replay: Replay | None = None,
    key: str | None = None,
    scope: KeyScope | None = None,
) -> Action:
    """Return the action of a call: the declaration of the function with the options of this call.

    Raises:
        Invalid: the function cannot be called, is async, or an option is wrong.
    """
    if not callable(function):
        raise Invalid(
            "bad_action", f"{function!r} cannot be called: give a function, then its args"
        )
    if is_async(function):
        raise Invalid(
            "async_action",
            f"{_name_of(function)} is async: call `await ortet.integrations.aio.act(session, …)`",
        )
    optional(TEXT, key=key, name=name, replay=replay, scope=scope)
    said: Action = getattr(function, _MARK, None) or Action(_name_of(function))
    own = key or _fill_key(said, function, args, kwargs)
    return check_action(Action(name or said.name, replay or said.replay, own, scope or said.scope))


def check_action(chosen: Action) -> Action:
    """Return the action if its fields are valid, otherwise raise Invalid."""
    check_text(name=chosen.name, key=chosen.key, replay=chosen.replay, scope=chosen.scope)
    _check(chosen.replay, chosen.scope)
    if chosen.replay == "idempotent" and not chosen.key:
        raise Invalid(
            "no_key",
            f"action {chosen.name!r} is idempotent by its key: give key='…', one per effect",
        )
    return chosen


def _fill_key(
    declared: Action, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str:
    """Return the declared key, filled with the arguments of this call."""
    if not isinstance(declared.key, str) or "{" not in declared.key:
        return declared.key
    try:
        call = inspect.signature(function).bind(*args, **kwargs)
        call.apply_defaults()
        return declared.key.format(**call.arguments)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise Invalid(
            "bad_key",
            f"key {declared.key!r} of action {declared.name!r} cannot be filled from its arguments "
            f"({error}): name parameters of the function in it, as in key='mail-{{to}}'",
        ) from error


def key_taken(action: Action, other: str) -> Conflict:
    return Conflict(
        "key_taken",
        f"key {action.key!r} belongs to action {other!r}, which was done or begun: give "
        f"{action.name!r} a key of its own",
        key=action.key,
    )


def arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments as plain data. Other values are shown as text and marked as opaque."""
    return {
        "args": [plain(arg) for arg in args],
        "kwargs": {k: plain(v) for k, v in kwargs.items()},
    }


def plain(value: Any) -> Any:
    """Return plain data for a value: records as maps, anything else as its printed text."""
    try:
        built = msgspec.to_builtins(value, str_keys=True)
        check_plain(built)
        if len(encode(built)) <= _MAX_PLAIN_BYTES:
            return built
    except Exception:  # any error: an effect that happened must be recorded
        pass
    return {"opaque": printed(value)}


def printed(value: Any) -> str:
    """Return the printed text of a value, shortened and safe to store."""
    try:
        text = repr(value)[:2000]
    except Exception:
        text = f"<{type(value).__name__} that cannot be printed>"
    return text.encode("utf-8", "replace").decode()


def is_opaque(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"opaque"}


def digest(hasher: Callable[[bytes], bytes], name: str, call_arguments: dict[str, Any]) -> str:
    """Return an id of a call: equal for equal name and arguments."""
    return hasher(encode([name, call_arguments])).hex()[:32]


def unsettled(effect: dict[str, Any]) -> Unsettled:
    return Unsettled(
        "unsettled",
        f"action {effect['name']!r} ({effect['id']}) was begun and its outcome is not known: find "
        f"out whether it was done, then s.actions.settle({effect['id']!r}, outcome), or "
        "failed=True if not",
        **effect,
    )


def in_flight(key: str, session: str) -> Conflict:
    return Conflict(
        "in_flight",
        f"the effect {key!r} is being done by session {session}: wait for it, then repeat the call",
        key=key,
        session=session,
    )


def no_effect(id_: str) -> NotFound:
    return NotFound("no_effect", f"no action {id_!r} was begun here: s.effects() lists them")


def is_async(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function)


def _check(replay: str, scope: str) -> None:
    if replay not in REPLAYS:
        raise Invalid("bad_action", f"replay={replay!r}: give one of {', '.join(REPLAYS)}")
    if scope not in ("family", "timeline"):
        raise Invalid("bad_action", f"scope={scope!r}: give 'family' or 'timeline'")


def _name_of(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__qualname__", type(function).__qualname__).rpartition(".<locals>.")[
        2
    ]
