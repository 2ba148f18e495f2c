"""From a state to a commit on disk, that no branch has yet."""

from __future__ import annotations

from ortet._util.failpoints import failpoint
from ortet.history.commits import History
from ortet.history.records import Commit
from ortet.ids import Clock, Oid
from ortet.objects.store import LocalObjectStore


def put_commit(
    objects: LocalObjectStore,
    history: History,
    *,
    state: Oid,
    parents: list[Oid],
    message: str,
    clock: Clock,
    author: str,
) -> Oid:
    """Durable on return, with all it refers to that was put before."""
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


def check_message(objects: LocalObjectStore, message: str) -> None:
    """Before anything is sealed: what is refused later would leave a mind half stored."""
    if objects.scanner is not None:
        text = message.encode("utf-8", "surrogatepass")
        objects.scanner.data(text, "the message of this commit", "say it without")


def _replace_surrogates(message: str) -> str:
    """Half a character, as a file name or a cut output may hold, cannot be stored as text."""
    return message.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
