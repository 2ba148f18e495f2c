"""Reads commits: their records, their order, and the common ancestors of two commits."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import islice

import msgspec

from ortet._util.codec import decode, encode
from ortet._util.validation import COUNT, optional
from ortet.errors import NotFound
from ortet.history.records import Commit, Image, State
from ortet.ids import Oid, to_hex
from ortet.objects.base import Kind, ObjectStore

_COMMIT_CACHE_SIZE = 16_384
"""The number of cached decoded commits: about 8 MB."""
_MAX_PARENT_STEPS = 1 << 62

_OURS, _THEIRS, _STALE = 1, 2, 4


class CommitInfo(msgspec.Struct, frozen=True):
    """A commit. Every method that takes a ref also takes a CommitInfo.

    Attributes:
        oid: Id of the commit, in hex.
        state: Id of the state, in hex. Commits of equal states have equal ids here.
        parents: Ids of the commits before, in hex. A merge has two.
        message: The message.
        time: Time of the commit, in ns since 1970.
        author: Who committed.
    """

    oid: str
    state: str
    parents: list[str]
    message: str
    time: int
    author: str


class History:
    """The commits of one store.

    Clocks of hosts may disagree. Order follows ancestry first, and time only between unrelated
    commits.
    """

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._commit_cache: dict[Oid, Commit] = {}
        self._last_state: tuple[Oid, State] | None = None  # the state that was read last

    def put(self, commit: Commit) -> Oid:
        """Store a commit and return its id."""
        oid = self._objects.put_new(Kind.COMMIT, encode(commit))
        return self._cache_commit(oid, commit)

    def read(self, oid: Oid) -> Commit:
        """Return a commit.

        Raises:
            NotFound: kind "no_object": the store does not have it.
            Corrupt: the object is not a commit.
        """
        commit = self._commit_cache.get(oid)
        if commit is None:
            commit = decode(Commit, self._objects.get(oid))
            self._cache_commit(oid, commit)
        return commit

    def _cache_commit(self, oid: Oid, commit: Commit) -> Oid:
        if len(self._commit_cache) >= _COMMIT_CACHE_SIZE:
            self._commit_cache.clear()
        self._commit_cache[oid] = commit
        return oid

    def info(self, oid: Oid) -> CommitInfo:
        """Return a commit in the form for users."""
        commit = self.read(oid)
        return CommitInfo(
            oid=to_hex(oid),
            state=to_hex(commit.state),
            parents=[to_hex(parent) for parent in commit.parents],
            message=commit.message,
            time=commit.time,
            author=commit.author,
        )

    def state(self, oid: Oid) -> State:
        """Return the state of a commit."""
        last = self._last_state
        if last is None or last[0] != oid:
            last = (oid, decode(State, self._objects.get(self.read(oid).state)))
            self._last_state = last
        return last[1]

    def image(self, oid: Oid) -> Image:
        """Return the machine image of a commit. Raises NotFound("no_files") if it has none."""
        state = self.state(oid)
        if not state.machine:
            raise NotFound(
                "no_files", f"commit {to_hex(oid)[:12]} holds no files: choose another commit"
            )
        return decode(Image, self._objects.get(Oid(state.machine)))

    def parent(self, oid: Oid, n: int = 1) -> Oid:
        """Return the n-th parent of a commit, counted from 1. 0 is the commit itself."""
        parents = self.read(oid).parents
        if n > len(parents):
            raise NotFound(
                "no_parent",
                f"commit {to_hex(oid)[:12]} has {len(parents)} parent(s), not {n}: "
                "`ortet log --graph` shows them",
            )
        return parents[n - 1] if n else oid

    def nth_parent(self, oid: Oid, n: int) -> Oid:
        """Return the commit that is n steps back along first parents."""
        parents = list(islice(self.first_parents(oid), n, n + 1)) if n < _MAX_PARENT_STEPS else []
        if not parents:
            few = "no commit comes" if n == 1 else f"fewer than {n} commits come"
            raise NotFound("no_parent", f"{few} before {to_hex(oid)[:12]}: `ortet log` shows them")
        return parents[0]

    def first_parents(self, oid: Oid) -> Iterator[Oid]:
        """Yield the commit and its first parents, newest first."""
        current: Oid | None = oid
        while current is not None:
            yield current
            parents = self.read(current).parents
            current = parents[0] if parents else None

    def log(
        self, oid: Oid, *, limit: int | None = None, first_parent: bool = False
    ) -> Iterator[CommitInfo]:
        """Yield commits newest first.

        Every commit comes after its descendants; time orders the rest.
        """
        optional(COUNT, limit=limit)
        order = self.first_parents(oid) if first_parent else self._topological_order(oid)
        for entry in islice(order, limit):
            yield self.info(entry)

    def ancestors(self, *oids: Oid) -> Iterator[Oid]:
        """Yield these commits and all their ancestors, each once, in no defined order."""
        stack, seen = list(oids), set(oids)
        while stack:
            oid = stack.pop()
            yield oid
            for parent in self.read(oid).parents:
                if parent not in seen:
                    seen.add(parent)
                    stack.append(parent)

    def is_ancestor(self, old: Oid, new: Oid) -> bool:
        """Return True if `new` is `old` or descends from it."""
        return self._mark_reachable(old, new)[old] & _THEIRS != 0

    def merge_base(self, a: Oid, b: Oid) -> Oid | None:
        """Return the best common ancestor, or None.

        Of several (after a criss-cross merge) return the newest, then the one with the lowest id.
        """
        marks = self._mark_reachable(a, b)
        common = [oid for oid, mark in marks.items() if mark == _OURS | _THEIRS]
        if len(common) > 1:
            # Clocks that disagree can leave a commit that is an ancestor of another one found.
            common = [
                oid
                for oid in common
                if not any(oid != other and self.is_ancestor(oid, other) for other in common)
            ]
        return min(common, key=lambda oid: (-self.read(oid).time, oid), default=None)

    def _topological_order(self, oid: Oid) -> Iterator[Oid]:
        """Yield the commit and its ancestors, children before parents.

        While each commit has one parent, a commit is read only when the caller asks for it.
        """
        current = oid
        while len(parents := self.read(current).parents) < 2:
            yield current
            if not parents:
                return
            current = parents[0]
        children = dict.fromkeys(self.ancestors(current), 0)
        for commit in children:
            for parent in self.read(commit).parents:
                children[parent] += 1
        ready = [(-self.read(current).time, current)]
        while ready:
            commit = heappop(ready)[1]
            yield commit
            for parent in self.read(commit).parents:
                children[parent] -= 1
                if not children[parent]:
                    heappush(ready, (-self.read(parent).time, parent))

    def _mark_reachable(self, ours: Oid, theirs: Oid) -> dict[Oid, int]:
        """Mark what each side reaches, until only common history (stale) is left."""
        marks = {ours: _OURS}
        marks[theirs] = marks.get(theirs, 0) | _THEIRS
        queue = [(-self.read(oid).time, oid) for oid in marks]
        heapify(queue)
        fresh = set(marks)  # queued, and not known to be common history
        while fresh:
            oid = heappop(queue)[1]
            fresh.discard(oid)
            mark = marks[oid]
            if mark == _OURS | _THEIRS:
                mark |= _STALE
            for parent in self.read(oid).parents:
                before = marks.get(parent, 0)
                if before | mark == before:
                    continue
                marks[parent] = before | mark
                heappush(queue, (-self.read(parent).time, parent))
                if marks[parent] & _STALE:
                    fresh.discard(parent)
                else:
                    fresh.add(parent)
        return marks
