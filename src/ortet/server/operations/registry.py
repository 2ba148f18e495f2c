"""The table of operations, from which routes, checks and the OpenAPI document are built.

An operation is a plain function. The type of its first parameter decides what it works on:

- `Hub`: the store.
- `SessionReader`: one session for reading, even if another process writes to it.
- `Session`: one session, leased to this server.
- `SessionPool`: all sessions, for an operation that chooses its session itself.

Further parameters are filled in by name. `ask` is the request: path parameters come from the path,
other fields from the query of a GET or DELETE, else from the JSON body. `caller` is the caller, and
`pool` the SessionPool. An operation that takes `key`, the idempotency key, must itself prevent a
second run. That is for operations that must be safe even if a server is killed.
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
"""Token scopes. Each one includes those before it."""

OPERATION_TAGS = {
    "sessions": "sessions",
    "conversation": "journal",
    "events": "journal",
    "plan_and_context": "plan",
    "facts": "memory",
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
"""Tag of each module of operations in the OpenAPI document. Clients know these tags."""

TAG_DESCRIPTIONS = {
    "journal": "The journal of a session: events, messages, thoughts, notes, questions, records and"
    " comments.",
}
"""Texts of tags that several modules share. Other tags have the docstring of their module."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Operation(NamedTuple):
    """One operation of the table.

    - `response_type`: type of the answer.
    - `moves_head`: the operation changes the head of a session, so `If-Match` is checked.
    - `filtered`: it works on all sessions, and shows a limited token only those of its agents.
    - `needs_host`: the caller must be allowed to run commands on the server's host.
    - `preview`: function that is called with a SessionReader instead, if the request has `dry_run`.
    """

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
    wants_pool: bool
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
        """True if the request is in the query, not in a body."""
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
    """Put a function into the table.

    Args:
        method: HTTP method.
        path: Path with parameters in braces.
        needs: Token scope; by default "read" for a GET, else "write".
        status: HTTP status of a successful answer.
        moves_head: The operation changes the head of a session.
        filtered: Allow an operation on a Hub or a SessionPool to tokens that are limited to agents.
            The function must check `caller.sees(agent)` for all that it shows or changes.
        needs_host: Refuse callers that may not run commands on this host. A session is checked
            first, so that they learn nothing about sessions of others.
        preview: Function for a dry run. It gets a SessionReader and the request, and no session is
            opened.
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
                wants_pool="pool" in others,
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
    """Return all operations."""
    for name in OPERATION_TAGS:
        import_module(f"ortet.server.operations.{name}")
    return list(_TABLE)


def path_parameters(path: str) -> Iterator[str]:
    """Yield the names of the parameters of a path."""
    for part in path.split("{")[1:]:
        yield part.partition("}")[0].partition(":")[0]
