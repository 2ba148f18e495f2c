"""Decides which commits a caller may read.

A caller without an agent limit may read all commits of its tenant. Other callers may read the
commits that are reachable from sessions of their agents. Knowing a commit id gives no right to read
the commit, because the id may come from a log.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from ortet.errors import NotFound, OrtetError
from ortet.history.refs import since_creation
from ortet.hub.hub import Hub
from ortet.ids import OID_BYTES, Oid
from ortet.server.auth.tokens import Caller

_MAX_CACHED_CALLERS = 32
"""Maximum number of (tenant, agents) pairs whose visible commits are cached."""


class CommitVisibility:
    """The visible commits of each kind of caller, cached so that only new commits are walked."""

    def __init__(self) -> None:
        self._visible_commits: OrderedDict[tuple[str, tuple[str, ...]], set[Oid]] = OrderedDict()
        self._lock = Lock()

    def resolve_commit(self, hub: Hub, caller: Caller, text: str) -> Oid:
        """Return the commit that `text` names.

        A caller that is limited to agents must give a full id.

        Raises:
            NotFound: The commit does not exist or is not visible; both have the same message.
        """
        if not caller.agents:
            return hub.refs.resolve(text)
        try:
            oid = Oid(bytes.fromhex(text))
        except ValueError:
            raise no_commit(text) from None
        if len(oid) != OID_BYTES or not self._is_visible(hub, caller, oid):
            raise no_commit(text)
        return oid

    @contextmanager
    def restrict_hub(self, caller: Caller, hub: Hub) -> Iterator[None]:
        """Within this block, `hub` resolves only commits that the caller may see."""
        if not caller.agents:
            yield
            return
        hub.refs.is_visible = lambda oid: self._is_visible(hub, caller, oid)
        try:
            yield
        finally:
            hub.refs.is_visible = None

    def _is_visible(self, hub: Hub, caller: Caller, oid: Oid) -> bool:
        with self._lock:
            key = caller.tenant, caller.agents
            known = self._visible_commits.setdefault(key, set())
            self._visible_commits.move_to_end(key)
            while len(self._visible_commits) > _MAX_CACHED_CALLERS:
                self._visible_commits.popitem(last=False)
            todo = [head for head in _visible_heads(hub, caller) if head not in known]
            while todo:
                commit = todo.pop()
                if commit not in known:
                    known.add(commit)
                    todo += [Oid(parent) for parent in hub.history.read(commit).parents]
            return oid in known


def _visible_heads(hub: Hub, caller: Caller) -> set[Oid]:
    """Return all present and past heads of the caller's sessions.

    Commits that a restore left stay readable.
    """
    heads: set[Oid] = set()
    for row in hub.sessions():
        if caller.sees(row.agent):
            head = hub.catalog.head(f"branch:{row.branch}")
            if head is not None:
                heads.add(head.oid)
            for op in since_creation(hub.refs.reflog(row.branch)):
                heads |= {Oid(one) for one in (op.old, op.new) if one is not None}
    return {oid for oid in heads if _is_readable(hub, oid)}


def _is_readable(hub: Hub, oid: Oid) -> bool:
    try:
        hub.history.read(oid)
    except OrtetError:  # garbage-collected: a reflog may name commits that are gone
        return False
    return True


def no_commit(text: str) -> NotFound:
    """Return the error for a commit that does not exist or is not visible."""
    return NotFound("no_commit", f"there is no commit {text[:100]!r}: `ortet log` lists them")
