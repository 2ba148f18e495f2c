"""Computes the objects that are reachable from roots. Sweep keeps them, verify checks them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ortet.errors import Corrupt, NotFound, OrtetError
from ortet.ids import Oid
from ortet.objects.base import Kind, ObjectRef, ObjectStore, ReferenceParser

_READ_BATCH_OBJECTS = 512

BrokenRefHandler = Callable[[ObjectRef, Oid | None, OrtetError], None]
"""Called with a broken reference, the object that contains it (None for a root), and the error."""

BlobHandler = Callable[[ObjectRef, Oid | None], None]
"""Called with each reference to a blob. Blobs contain no references."""

_PendingRef = tuple[ObjectRef, Oid | None]


class ReachableSet:
    """A growing set of reachable objects.

    Equal bytes may be reachable as a blob and as a tree. Followed references are therefore
    remembered with their kind.
    """

    def __init__(self, objects: ObjectStore, parse_references: ReferenceParser) -> None:
        self.oids: set[Oid] = set()
        self.newly_reached: set[Oid] = set()
        """Objects added since the owner last cleared this set."""
        self.commits = 0
        self._objects = objects
        self._parse_references = parse_references
        self._followed: set[tuple[Oid, Kind]] = set()

    def add(
        self,
        roots: Iterable[ObjectRef],
        *,
        on_broken: BrokenRefHandler | None = None,
        on_blob: BlobHandler | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> None:
        """Add everything that `roots` reach.

        Args:
            on_broken: Called for each broken reference. Without it, a broken reference raises.
            on_blob: Called for each reference to a blob.
            on_progress: Called from time to time with the number of reachable objects.
        """
        stack: list[_PendingRef] = []
        for root in roots:
            self._push(stack, root, None, on_blob)
        while stack:
            batch = stack[-_READ_BATCH_OBJECTS:]
            del stack[-_READ_BATCH_OBJECTS:]
            self._follow(batch, stack, on_broken or _raise_missing, on_blob)
            if on_progress is not None:
                on_progress(len(self.oids))

    def _push(
        self,
        stack: list[_PendingRef],
        ref: ObjectRef,
        parent: Oid | None,
        on_blob: BlobHandler | None,
    ) -> None:
        if ref.oid not in self.oids:
            self.oids.add(ref.oid)
            self.newly_reached.add(ref.oid)
        if ref.kind == Kind.BLOB:
            if on_blob is not None:
                on_blob(ref, parent)
        elif (ref.oid, ref.kind) not in self._followed:
            self._followed.add((ref.oid, ref.kind))
            self.commits += ref.kind == Kind.COMMIT
            stack.append((ref, parent))

    def _follow(
        self,
        batch: list[_PendingRef],
        stack: list[_PendingRef],
        on_broken: BrokenRefHandler,
        on_blob: BlobHandler | None,
    ) -> None:
        contents = self._read(batch, on_broken)
        for link, parent in batch:
            data = contents.get(link.oid)
            if data is None:
                continue
            try:
                links = list(self._parse_references(link.kind, data))
            except OrtetError as error:
                on_broken(link, parent, error)
                continue
            for each in links:
                self._push(stack, each, link.oid, on_blob)

    def _read(self, batch: list[_PendingRef], on_broken: BrokenRefHandler) -> dict[Oid, bytes]:
        try:
            return dict(self._objects.get_many(link.oid for link, _ in batch))
        except OrtetError:
            pass  # read one by one to find the broken one
        contents: dict[Oid, bytes] = {}
        for link, parent in batch:
            try:
                contents[link.oid] = self._objects.get(link.oid)
            except OrtetError as error:
                on_broken(link, parent, error)
        return contents


def _raise_missing(ref: ObjectRef, parent: Oid | None, error: OrtetError) -> None:
    if not isinstance(error, NotFound):
        raise error
    whose = f"object {parent.hex()} refers to it" if parent else "a root refers to it"
    raise Corrupt(
        "missing_object",
        f"object {ref.oid.hex()} is missing and {whose}: run `ortet verify`",
        oid=ref.oid.hex(),
    )
