"""Everything that can be reached from some roots: sweep keeps it, verify checks it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ortet.errors import Corrupt, NotFound, OrtetError
from ortet.ids import Oid
from ortet.objects.base import Kind, Link, Objects, Walk

_BATCH = 512

Trouble = Callable[[Link, Oid | None, OrtetError], None]
"""Called with what could not be followed, the object that refers to it (None: a root), and why."""

Leaf = Callable[[Link, Oid | None], None]
"""Called with each reference to a blob, which refers to nothing."""

_Step = tuple[Link, Oid | None]


class Marks:
    """A growing set of reached objects. The same bytes may be reached as a blob and as a tree, so
    what is followed is remembered with its kind."""

    def __init__(self, objects: Objects, walk: Walk) -> None:
        self.oids: set[Oid] = set()
        self.fresh: set[Oid] = set()
        """Marked since the owner last emptied it."""
        self.commits = 0
        self._objects = objects
        self._walk = walk
        self._walked: set[tuple[Oid, Kind]] = set()

    def add(
        self,
        roots: Iterable[Link],
        *,
        trouble: Trouble | None = None,
        leaf: Leaf | None = None,
        tick: Callable[[int], None] | None = None,
    ) -> None:
        """Mark all that `roots` reach. Without `trouble`, what can not be followed raises.

        `tick` is told now and then how many are marked.
        """
        stack: list[_Step] = []
        for root in roots:
            self._push(stack, root, None, leaf)
        while stack:
            batch = stack[-_BATCH:]
            del stack[-_BATCH:]
            self._follow(batch, stack, trouble or _raise, leaf)
            if tick is not None:
                tick(len(self.oids))

    def _push(self, stack: list[_Step], link: Link, parent: Oid | None, leaf: Leaf | None) -> None:
        if link.oid not in self.oids:
            self.oids.add(link.oid)
            self.fresh.add(link.oid)
        if link.kind == Kind.BLOB:
            if leaf is not None:
                leaf(link, parent)
        elif (link.oid, link.kind) not in self._walked:
            self._walked.add((link.oid, link.kind))
            self.commits += link.kind == Kind.COMMIT
            stack.append((link, parent))

    def _follow(
        self, batch: list[_Step], stack: list[_Step], trouble: Trouble, leaf: Leaf | None
    ) -> None:
        found = self._read(batch, trouble)
        for link, parent in batch:
            data = found.get(link.oid)
            if data is None:
                continue
            try:
                links = list(self._walk(link.kind, data))
            except OrtetError as error:
                trouble(link, parent, error)
                continue
            for each in links:
                self._push(stack, each, link.oid, leaf)

    def _read(self, batch: list[_Step], trouble: Trouble) -> dict[Oid, bytes]:
        try:
            return dict(self._objects.get_many(link.oid for link, _ in batch))
        except OrtetError:
            pass  # one by one, to say which
        found: dict[Oid, bytes] = {}
        for link, parent in batch:
            try:
                found[link.oid] = self._objects.get(link.oid)
            except OrtetError as error:
                trouble(link, parent, error)
        return found


def _raise(link: Link, parent: Oid | None, error: OrtetError) -> None:
    if not isinstance(error, NotFound):
        raise error
    whose = f"object {parent.hex()} refers to it" if parent else "a root refers to it"
    raise Corrupt(
        "missing_object",
        f"object {link.oid.hex()} is missing and {whose}: run `ortet verify`",
        oid=link.oid.hex(),
    )
