"""Verifies a store: every frame, every hash, every index, every reference."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from ortet.errors import Corrupt, NotFound, OrtetError
from ortet.ids import Oid
from ortet.objects import frame
from ortet.objects.base import ObjectRef, ReferenceParser
from ortet.objects.gc.reachability import ReachableSet
from ortet.objects.pack import Pack
from ortet.objects.pack_index import open_index
from ortet.objects.source import FrameSource
from ortet.objects.store import PackedObjectStore
from ortet.objects.tail import Tail

_READ_AHEAD_FRAMES = 4
Progress = Callable[[int, int], None]
Roots = Callable[[], Iterable[ObjectRef]]


class Problem(msgspec.Struct, frozen=True):
    """One problem. `oid` is hex, or "" if the problem is not about a single object."""

    oid: str
    where: str
    what: str


class VerifyReport(msgspec.Struct, frozen=True):
    """The result of a verification. The store is intact if `problems` is empty.

    Attributes:
        objects: Number of objects that were checked.
        bytes: Size of these objects.
        commits: Number of commits that were checked.
        problems: What is damaged or missing.
        unfinished: Damaged frames of tails that held nothing anybody was told of. A power cut
            leaves them. The next writer cuts them off.
        archives: Number of archived sessions whose bundles were checked.
        restored: Number of commits whose files were restored and compared.
        sample: Fraction of the stored data that was read.
    """

    objects: int
    bytes: int
    commits: int
    problems: list[Problem]
    unfinished: int = 0
    archives: int = 0
    restored: int = 0
    sample: float = 1.0


def verify(
    objects: PackedObjectStore,
    roots: Roots,
    parse_references: ReferenceParser,
    *,
    progress: Progress | None = None,
    sample: float = 1.0,
) -> VerifyReport:
    """Read the store and collect all problems. `progress` gets bytes done and total bytes.

    With `sample` below 1, only this fraction of the frames is decompressed and hashed. The headers
    of all frames and all references are checked.
    """
    while True:
        epoch = objects.sweep_lock.epoch()
        report = _verify_once(objects, roots, parse_references, progress, sample)
        if not report.problems or not objects.swept_since(epoch):
            return report
        # Another host, which we cannot lock out, may have swept missing objects during the check.
        # Retry.


def _verify_once(
    objects: PackedObjectStore,
    roots: Roots,
    parse_references: ReferenceParser,
    progress: Progress | None,
    sample: float,
) -> VerifyReport:
    with objects.sweep_lock.hold_gc_lock(exclusive=False):
        objects.drop_local_cache()
        objects.pack_set.refresh(reload_tails=True)
        check = _Verifier(objects, progress, sample)
        for source in objects.pack_set.sources():
            check.check_source(source)
        known = len(check.problems)
        marks = check.check_references(roots(), parse_references)
        # A writer syncs a tail before anything refers to its objects. If nothing that is referred
        # to is missing, nobody was told of what the damaged frames held.
        lost = len(check.problems) > known
        return VerifyReport(
            objects=check.objects,
            bytes=check.bytes,
            commits=marks.commits,
            problems=[*check.problems, *check.tail_problems] if lost else check.problems,
            unfinished=0 if lost else len(check.tail_problems),
            sample=sample,
        )


class _Verifier:
    def __init__(
        self, objects: PackedObjectStore, progress: Progress | None, sample: float
    ) -> None:
        self.objects = 0
        self.bytes = 0
        self.problems: list[Problem] = []
        self.tail_problems: list[Problem] = []
        self._sample = sample
        self._store = objects
        self._verified: set[Oid] = set()
        self._progress = progress
        self._bytes_total = sum(source.extent() for source in objects.pack_set.sources())
        self._bytes_done = 0

    def _report(self, where: str, what: str, oid: Oid | None = None) -> None:
        self.problems.append(Problem(oid.hex() if oid else "", where, what))

    def _report_frame(
        self, source: FrameSource, where: str, what: str, oid: Oid | None = None
    ) -> None:
        """Report a damaged frame. In a tail, it counts only if something it held is missing."""
        problems = self.tail_problems if isinstance(source, Tail) else self.problems
        problems.append(Problem(oid.hex() if oid else "", where, what))

    # frames and indexes

    def check_source(self, source: FrameSource) -> None:
        where = f"{'tail' if isinstance(source, Tail) else 'pack'} {source.id}"
        places: dict[Oid, list[tuple[int, int, int, int]]] = {}
        with ThreadPoolExecutor(2, "ortet-verify") as pool:
            coming: deque[tuple[frame.FrameInfo, Future[list[Oid]]]] = deque()
            for frame_info in self._valid_frames(source, where):
                if self._sample < 1 and random.random() >= self._sample:
                    self._skip_frame(frame_info, places)
                    continue
                coming.append((frame_info, pool.submit(self._hash_objects, source, frame_info)))
                if len(coming) > _READ_AHEAD_FRAMES:
                    self._check_frame(source, where, *coming.popleft(), places)
            while coming:
                self._check_frame(source, where, *coming.popleft(), places)
        if isinstance(source, Pack):
            self._check_index(source, places)

    def _valid_frames(self, source: FrameSource, where: str) -> Iterator[frame.FrameInfo]:
        """Yield frames with valid headers. Report damage between them, except an incomplete end."""
        position: int | None = 0
        stop, tried = source.extent(), -1
        while position is not None:
            start = position
            try:
                for frame_info in frame.scan(source.read, start, stop):
                    yield frame_info
                    start = frame_info.offset + frame_info.header.size
                return
            except NotFound as error:
                self._report(where, error.message)
                return
            except OrtetError as error:
                if isinstance(source, Tail) and tried != start:
                    # The frame may have been incomplete when it was read. Read it once more.
                    position, stop, tried = start, source.extent(), start
                    continue
                position = frame.resync(source.read, start + 1, stop)
                if position is not None or not _is_torn(source, start):
                    self._report_frame(source, where, error.message)

    def _hash_objects(self, source: FrameSource, frame_info: frame.FrameInfo) -> list[Oid]:
        """Compute the ids of a frame's objects from disk, not from a cache."""
        data = memoryview(source.load(frame_info.offset))
        oids: list[Oid] = []
        offset = 0
        for _, _, length in frame_info.rows():
            oids.append(self._store.hasher.oid(data[offset : offset + length]))
            offset += length
        return oids

    def _skip_frame(
        self, frame_info: frame.FrameInfo, locations: dict[Oid, list[tuple[int, int, int, int]]]
    ) -> None:
        """Take over the table of a frame that is not part of the sample."""
        self._bytes_done += frame_info.header.size
        start = 0
        for oid, kind, length in frame_info.rows():
            locations.setdefault(oid, []).append((frame_info.offset, start, length, kind))
            self._verified.add(oid)
            start += length

    def _check_frame(
        self,
        source: FrameSource,
        where: str,
        frame_info: frame.FrameInfo,
        hashes: Future[list[Oid]],
        locations: dict[Oid, list[tuple[int, int, int, int]]],
    ) -> None:
        self._bytes_done += frame_info.header.size
        if self._progress is not None:
            self._progress(self._bytes_done, self._bytes_total)
        if frame_info.header.key_id != self._store.hasher.key_id:
            self._report(where, f"frame at byte {frame_info.offset} belongs to another key")
            return
        rows = list(frame_info.rows())
        start = 0
        for oid, kind, length in rows:
            locations.setdefault(oid, []).append((frame_info.offset, start, length, kind))
            start += length
        try:
            oids = self._await_hashes(source, frame_info, hashes)
        except (Corrupt, NotFound) as error:
            if not _is_torn(source, frame_info.offset):
                self._report_frame(
                    source, where, f"{error.message} ({len(rows)} objects)", rows[0][0]
                )
            return
        self.objects += len(rows)
        self.bytes += frame_info.header.raw
        for (oid, _, _), true in zip(rows, oids, strict=True):
            if oid == true:
                self._verified.add(oid)
            else:
                self._report(where, "does not match its hash", oid)

    def _await_hashes(
        self, source: FrameSource, frame_info: frame.FrameInfo, hashes: Future[list[Oid]]
    ) -> list[Oid]:
        """Return the hashes. Read a tail's frame again: it may have been incomplete before."""
        try:
            return hashes.result()
        except Corrupt:
            if not isinstance(source, Tail):
                raise
            return self._hash_objects(source, frame_info)

    def _check_index(
        self, pack: Pack, locations: dict[Oid, list[tuple[int, int, int, int]]]
    ) -> None:
        """Compare an index with its pack and rebuild a wrong one.

        A missing index is not a problem.
        """
        where = f"index {pack.id}"
        try:
            index = open_index(pack.index_path)
            wrong = sum(tuple(place) not in locations.get(oid, ()) for oid, _, *place in index)
            wrong += index.packs != [(pack.id, pack.end)]
            missing = {oid for oid, *_ in index} != locations.keys()
        except FileNotFoundError:
            return
        except Corrupt as error:
            self._report(where, error.message)
        else:
            if not wrong and not missing:
                return
            self._report(where, f"does not agree with its pack ({wrong} wrong entries)")
        pack.rebuild_index()

    # references

    def check_references(
        self, roots: Iterable[ObjectRef], parse_references: ReferenceParser
    ) -> ReachableSet:
        marks = ReachableSet(self._store, parse_references)
        reported: set[Oid] = set()

        def trouble(link: ObjectRef, parent: Oid | None, error: OrtetError) -> None:
            self._report(_describe_ref(link, parent), error.message, link.oid)
            reported.add(link.oid)

        def leaf(link: ObjectRef, parent: Oid | None) -> None:
            if link.oid not in self._verified and link.oid not in reported:
                reported.add(link.oid)
                if not self._is_intact(link.oid):
                    self._report(_describe_ref(link, parent), "is missing or damaged", link.oid)

        marks.add(roots, on_broken=trouble, on_blob=leaf)
        return marks

    def _is_intact(self, oid: Oid) -> bool:
        """Check an object that was put during the verification and was in no frame read before."""
        try:
            return self._store.hasher.oid(self._store.get(oid)) == oid
        except (NotFound, Corrupt):
            return False


def _is_torn(source: FrameSource, offset: int) -> bool:
    """Return True if a bad frame is the last of a tail and incomplete.

    A killed writer leaves such a frame. No caller was told that it is stored, and recovery
    truncates it.
    """
    if not isinstance(source, Tail):
        return False
    rest = source.read(offset, source.extent() - offset).rstrip(b"\0")
    try:
        return len(rest) < frame.parse_header(rest.ljust(frame.HEADER_BYTES, b"\0")).size
    except OrtetError:
        return len(rest) < frame.HEADER_BYTES


def _describe_ref(ref: ObjectRef, parent: Oid | None) -> str:
    whose = f"object {parent.hex()}" if parent else "a root"
    return f"{ref.kind.name.lower()} referred to by {whose}"
