"""Actions: declaration of functions that agents call, idempotency keys and plain data.

`effects.py` runs actions. This module has no store access.

What the next call with the same key does (docs/guide/actions-and-effects.md has the same table):

| class | it returned | it raised NotDone | it raised anything else | its process died |
|---|---|---|---|---|
| `pure` | runs again | runs again | runs again | runs again |
| `recorded` | recorded outcome | runs again | runs again | Unsettled |
| `idempotent` | recorded outcome | runs again | runs again | runs again |
| `once` | recorded outcome | runs again | Unsettled | Unsettled |
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, TypeVar, overload

import msgspec

from ortet._util.codec import encode
from ortet._util.validation import TEXT, check_text, optional
from ortet.errors import Conflict, Invalid, NotDone, NotFound, Unsettled
from ortet.journal.events import check_plain

P = ParamSpec("P")
R = TypeVar("R")

Replay = Literal["pure", "recorded", "idempotent", "once"]
KeyScope = Literal["family", "timeline"]
Where = Literal["workspace", "outside"]
"""Where the effect of an action is.

An effect in the workspace belongs to the timeline: a restore undoes it and frees its key. An effect
outside stays, whatever is restored.
"""

REPLAYS = ("pure", "recorded", "idempotent", "once")
_MARK = "__ortet_action__"
_MAX_PLAIN_BYTES = 256 * 1024
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class ByArguments:
    """Type of `ortet.by_arguments`: the key of a call is made of its name and its arguments."""

    def __repr__(self) -> str:
        return "ortet.by_arguments"


by_arguments = ByArguments()
"""Give it as `key=` for an action whose equal calls are one effect."""


class Action(msgspec.Struct, frozen=True):
    """How a function that agents call may be repeated.

    - `pure`: run it again freely.
    - `recorded`: return the recorded outcome.
    - `idempotent`: run it again with the same key.
    - `once`: never run it again, unless it raised NotDone or one of `safe_errors`.
    """

    name: str
    replay: Replay = "recorded"
    key: str | ByArguments = ""
    scope: KeyScope | None = None
    where: Where | None = None
    safe_errors: tuple[type[BaseException], ...] = ()

    @property
    def is_rerun(self) -> bool:
        """True if the action may run again although it was begun before."""
        return self.replay in ("pure", "idempotent")

    def state_after(self, error: BaseException) -> str:
        """Return the state of an effect whose function raised `error`.

        Only NotDone and `safe_errors` say that a `once` action did nothing.
        """
        if self.replay != "once" or isinstance(error, (NotDone, *self.safe_errors)):
            return "failed"
        return "unsettled"


class CallOptions(msgspec.Struct, frozen=True):
    """The options of one call of an action; see `Session.act`.

    `record` turns the result into plain data for the journal, and `recall` turns recorded data into
    a result.
    """

    why: str = ""
    replay: Replay | None = None
    key: str | ByArguments | None = None
    scope: KeyScope | None = None
    name: str | None = None
    approve: str | None = None
    where: Where | None = None
    safe_errors: tuple[type[BaseException], ...] = ()
    default_where: Where = "outside"
    record: Callable[[Any], Any] | None = None
    recall: Callable[[Any], Any] | None = None


@overload
def action(name: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def action(
    name: str = "",
    *,
    replay: Replay = "recorded",
    key: str | ByArguments = "",
    scope: KeyScope | None = None,
    where: Where | None = None,
    safe_errors: tuple[type[BaseException], ...] = (),
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def action(
    name: Any = "",
    *,
    replay: Replay = "recorded",
    key: str | ByArguments = "",
    scope: KeyScope | None = None,
    where: Where | None = None,
    safe_errors: tuple[type[BaseException], ...] = (),
) -> Any:
    """Mark a function as an action. Calling the function directly works as before.

    Use `@ortet.action`, or `@ortet.action(replay="once", key="mail-{to}")`. The key is filled with
    the argument `to` of each call.

    Args:
        name: the recorded name; by default that of the function.
        replay: how the action may be repeated: "pure", "recorded", "idempotent" or "once".
        key: an idempotency key; `ortet.by_arguments` makes it of the name and the arguments.
        scope: "family" for the session and all its forks, or "timeline".
        where: "outside" (the default), or "workspace" for an action that only changes files of the
            workspace. A restore undoes those and frees their keys.
        safe_errors: classes of exceptions that say, like `ortet.NotDone`, that nothing happened.
    """
    check_text(replay=replay)
    _check_key(key)
    _check(replay, scope, where, safe_errors)
    if not callable(name):
        check_text(name=name)

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        safe = _classes(safe_errors)
        declared = Action(said or _name_of(function), replay, key, scope, where, safe)
        setattr(function, _MARK, declared)
        return function

    said = name if isinstance(name, str) else ""
    return mark(name) if callable(name) else mark


def describe(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    options: CallOptions,
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
    optional(TEXT, name=options.name, replay=options.replay, scope=options.scope)
    if options.key is not None:
        _check_key(options.key)
    said: Action = getattr(function, _MARK, None) or Action(_name_of(function))
    key = options.key or _fill_key(said, function, args, kwargs)
    chosen = Action(
        options.name or said.name,
        options.replay or said.replay,
        key,
        options.scope or said.scope,
        options.where or said.where,
        (*said.safe_errors, *_classes(options.safe_errors))
        if options.safe_errors
        else said.safe_errors,
    )
    return check_action(chosen, options.default_where)


def check_action(chosen: Action, default_where: Where = "outside") -> Action:
    """Return the action with its defaults filled in, or raise Invalid.

    An effect in the workspace belongs to the timeline. A call that asks for the family or for
    `once` is meant for the world outside, also where the default is the workspace.
    """
    check_text(name=chosen.name, replay=chosen.replay)
    _check_key(chosen.key)
    _check(chosen.replay, chosen.scope, chosen.where, chosen.safe_errors)
    if chosen.replay in ("idempotent", "once") and not chosen.key:
        raise Invalid(
            "no_key",
            f"action {chosen.name!r} is {chosen.replay} by its key: give key='…', one per effect, "
            "or key=ortet.by_arguments if equal calls are one effect",
        )
    where, scope = chosen.where, chosen.scope
    if where is None:
        outside = scope == "family" or chosen.replay == "once"
        where = "outside" if outside else default_where
    if where == "workspace" and scope == "family":
        raise Invalid(
            "bad_action",
            f"the effect of {chosen.name!r} is in the workspace, which each fork has for itself: "
            "leave out scope='family', or say where='outside'",
        )
    scope = scope or ("timeline" if where == "workspace" else "family")
    return Action(chosen.name, chosen.replay, chosen.key, scope, where, chosen.safe_errors)


def key_by_arguments(action: Action, mark: str, call_arguments: dict[str, Any]) -> Action:
    """Return the action with a key made of the digest of its call, if it asks for one.

    Raises:
        Invalid: an argument is no plain data, so that two calls cannot be told apart.
    """
    if not isinstance(action.key, ByArguments):
        return action
    if has_opaque(call_arguments):
        raise Invalid(
            "opaque_key",
            f"an argument of {action.name!r} is no plain data, so its key cannot be made of the "
            "arguments: give key='…'",
        )
    return msgspec.structs.replace(action, key=f"by-arguments/{mark}")


def _fill_key(
    declared: Action, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str | ByArguments:
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


def key_reused(action: Action, given: str, known: str) -> Conflict:
    shown = known or "other arguments"
    return Conflict(
        "key_reused",
        f"key {action.key!r} was used for {shown}, and now for {given}: one key is one effect, so "
        "give this call a key of its own",
        key=action.key,
        given=given,
        known=known,
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
        # in a fixed order: a set must have the same digest in the next process
        built = msgspec.to_builtins(value, str_keys=True, order="deterministic")
        check_plain(built)
        if len(encode(built)) <= _MAX_PLAIN_BYTES:
            return built
    except Exception:  # any error: an effect that happened must be recorded
        pass
    return {"opaque": printed(value)}


def printed(value: Any) -> str:
    """Return the printed text of a value, shortened and safe to store.

    Addresses in memory are left out: the same call in the next process must look the same.
    """
    try:
        text = _ADDRESS.sub("", repr(value))[:2000]
    except Exception:
        text = f"<{type(value).__name__} that cannot be printed>"
    return text.encode("utf-8", "replace").decode()


def is_opaque(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"opaque"}


def has_opaque(call_arguments: dict[str, Any]) -> bool:
    """Return True if an argument was recorded as text, so that two calls may only look equal."""
    return any(map(is_opaque, [*call_arguments["args"], *call_arguments["kwargs"].values()]))


def digest(hasher: Callable[[bytes], bytes], name: str, call_arguments: dict[str, Any]) -> str:
    """Return an id of a call: equal for equal name and arguments."""
    return hasher(encode([name, call_arguments])).hex()[:32]


def format_call(name: str, call_arguments: dict[str, Any]) -> str:
    """Return a call as readable text."""
    args = [repr(arg) for arg in call_arguments["args"]]
    args += [f"{key}={value!r}" for key, value in call_arguments["kwargs"].items()]
    return f"{name}({', '.join(args)})"[:1000]


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


def _check_key(key: object) -> None:
    if not isinstance(key, ByArguments):
        check_text(key=key)


def _check(replay: str, scope: str | None, where: str | None, safe_errors: object) -> None:
    if replay not in REPLAYS:
        raise Invalid("bad_action", f"replay={replay!r}: give one of {', '.join(REPLAYS)}")
    if scope not in (None, "family", "timeline"):
        raise Invalid("bad_action", f"scope={scope!r}: give 'family' or 'timeline'")
    if where not in (None, "workspace", "outside"):
        raise Invalid("bad_action", f"where={where!r}: give 'workspace' or 'outside'")
    if safe_errors != ():
        _classes(safe_errors)


def _classes(safe_errors: Any) -> tuple[type[BaseException], ...]:
    given = (safe_errors,) if isinstance(safe_errors, type) else safe_errors
    if isinstance(given, list | tuple) and all(
        isinstance(one, type) and issubclass(one, BaseException) for one in given
    ):
        return tuple(given)
    raise Invalid("bad_action", f"safe_errors={safe_errors!r}: give a tuple of exception classes")


def _name_of(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__qualname__", type(function).__qualname__).rpartition(".<locals>.")[
        2
    ]
