"""Writes a commit record durably, before any branch points to it.

A module of its own, because workspaces and sessions both commit and must flush in the same order.
"""

from __future__ import annotations

from ortet._util.failpoints import failpoint
from ortet.history.commits import History
from ortet.history.records import Commit
from ortet.ids import Clock, Oid
from ortet.objects.store import PackedObjectStore


def put_commit(
    objects: PackedObjectStore,
    history: History,
    *,
    state: Oid,
    parents: list[Oid],
    message: str,
    clock: Clock,
    author: str,
) -> Oid:
    """Write a commit and return its id.

    On return, the commit and all objects put before it are durable.
    """
    commit = Commit(
        state=state,
        parents=parents,
        message=message if message.isascii() else _replace_surrogates(message),
        time=clock.now_ns(),
        author=author,
    )
    oid = history.put(commit)
    failpoint("commit.before-flush")
    objects.flush()
    failpoint("commit.after-flush")
    return oid


def check_message(objects: PackedObjectStore, message: str) -> None:
    """Raise Refused if the message contains a known secret.

    Call this before sealing. A later refusal would leave a partly stored session state.
    """
    if objects.scanner is not None:
        text = message.encode("utf-8", "surrogatepass")
        objects.scanner.data(text, "the message of this commit", "say it without")


def _replace_surrogates(message: str) -> str:
    """Replace lone surrogates, which cannot be stored as UTF-8.

    File names and truncated output may contain them.
    """
    return message.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
