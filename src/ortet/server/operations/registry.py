"""What can be asked over HTTP: one table, from which routes, the document and checks are made.

An operation is a plain function. The type of its first parameter says what it works on: a `Hub`, a
`View` (to read a session, whoever writes to it), a `Session` (leased to this server), or all
`Rooms`, for what chooses its session itself. `ask` is what the request says: fields named in the
path come from there, the others from the query of a GET or DELETE, else from the JSON body.
`caller` is who asks, `rooms` where other sessions are. An operation that takes the `key` of the
request sees to it by itself that the same is not done twice: for what must be told apart even when
a server was killed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Literal, NamedTuple, TypeVar, get_type_hints

import msgspec

from ortet.hub.hub import Hub
from ortet.server.session_pool.pool import SessionPool
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session

TokenScope = Literal["read", "write", "admin"]
TOKEN_SCOPES: tuple[TokenScope, ...] = ("read", "write", "admin")
"""What a token must allow; each includes those before it."""

OPERATION_TAGS = {
    "sessions": "sessions",
    "journal": "journal",
    "plan": "plan",
    "memory": "memory",
    "recall": "recall",
    "actions": "deeds",
    "budget": "money",
    "artifacts": "artifacts",
    "external_state": "around",
    "secrets": "secrets",
    "runs": "runs",
    "turns": "turns",
    "machine": "machine",
    "jobs": "job",
    "kernels": "kernel",
    "swarms": "swarm",
    "history": "history",
    "refs": "refs",
    "navigation": "moving",
    "merge": "joining",
    "store": "store",
    "governance": "keeping",
}
"""Module of operations -> the tag of its operations in the OpenAPI document, which clients know."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Operation(NamedTuple):
    """One line of the table. `gives` is the type of the answer; `moves`: it changes the head of a
    session, so that `If-Match` holds it to the head that the caller has seen; `filtered`: it works
    on all sessions, and shows a caller who may see some agents only what is theirs; `runs`: it is
    for those who may run commands on the server's host; `tells`: what is done on a View instead,
    when `dry_run` is asked for."""

    name: str
    method: str
    path: str
    needs: TokenScope
    target: type[Hub | SessionReader | Session | SessionPool]
    request_type: type[msgspec.Struct] | None
    response_type: Any
    handler: Callable[..., Any]
    status: int
    moves_head: bool
    wants_caller: bool
    wants_rooms: bool
    wants_key: bool
    filtered: bool
    needs_host: bool
    preview: Callable[..., Any] | None
    tag: str
    text: str

    @property
    def writes(self) -> bool:
        return self.method != "GET"

    @property
    def in_query(self) -> bool:
        """What is asked stands in the query, not in a body."""
        return self.method in ("GET", "DELETE")


_TABLE: list[Operation] = []


def operation(
    method: str,
    path: str,
    *,
    needs: TokenScope | None = None,
    status: int = 200,
    moves_head: bool = False,
    filtered: bool = False,
    needs_host: bool = False,
    preview: Callable[..., Any] | None = None,
) -> Callable[[_Function], _Function]:
    """Puts a function into the table. Without `needs`, a GET needs read and all else write.

    What works on a `Hub` or on `Rooms` is refused to a token that is for some agents, unless it is
    `filtered`: then it asks `caller.sees(agent)` of all that it tells or touches. With `runs`, a
    token that may run nothing on this host is refused, once it is known that it sees the session.
    A dry run of one that has `tells` opens nothing: that is called with a View and what is asked.
    """

    def add(function: _Function) -> _Function:
        hints = get_type_hints(function)
        first, *others = inspect.signature(function).parameters
        if filtered and "caller" not in others:
            raise TypeError(f"{function.__name__} cannot filter without its caller")
        _TABLE.append(
            Operation(
                name=function.__name__.rstrip("_"),
                method=method,
                path=path,
                needs=needs or ("read" if method == "GET" else "write"),
                target=hints[first],
                request_type=hints.get("ask"),
                response_type=hints["return"],
                handler=function,
                status=status,
                moves_head=moves_head,
                wants_caller="caller" in others,
                wants_rooms="rooms" in others,
                wants_key="key" in others,
                filtered=filtered,
                needs_host=needs_host,
                preview=preview,
                tag=OPERATION_TAGS[function.__module__.rpartition(".")[2]],
                text=inspect.getdoc(function) or "",
            )
        )
        return function

    return add


def operations() -> list[Operation]:
    """All of them."""
    for name in OPERATION_TAGS:
        import_module(f"ortet.server.operations.{name}")
    return list(_TABLE)


def path_parameters(path: str) -> Iterator[str]:
    """The parameters that a path names."""
    for part in path.split("{")[1:]:
        yield part.partition("}")[0].partition(":")[0]
