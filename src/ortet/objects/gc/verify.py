"""Is everything there and right: every frame, every hash, every index, every reference."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from ortet.errors import Corrupt, NotFound, OrtetError
from ortet.ids import Oid
from ortet.objects import frame
from ortet.objects.base import Link, Walk
from ortet.objects.gc.reachability import Marks
from ortet.objects.pack import Pack
from ortet.objects.pack_index import open_index
from ortet.objects.source import Source
from ortet.objects.store import LocalObjects
from ortet.objects.tail import Tail

_AHEAD = 4
Progress = Callable[[int, int], None]
Roots = Callable[[], Iterable[Link]]


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong. `oid` is hex, "" where no single object is meant."""

    oid: str
    where: str
    what: str


class VerifyReport(msgspec.Struct, frozen=True):
    """What was looked at, and what is wrong: nothing, if `problems` is empty."""

    objects: int
    bytes: int
    commits: int
    problems: list[Problem]


def verify(
    objects: LocalObjects, roots: Roots, walk: Walk, *, progress: Progress | None = None
) -> VerifyReport:
    """Read all of it, whatever is found on the way. `progress` gets bytes done and in all."""
    while True:
        epoch = objects.gate.epoch()
        report = _verify(objects, roots, walk, progress)
        if not report.problems or not objects.swept_since(epoch):
            return report
        # what is not there may have been swept away while we looked, by a host we cannot keep out


def _verify(
    objects: LocalObjects, roots: Roots, walk: Walk, progress: Progress | None
) -> VerifyReport:
    with objects.gate.busy(alone=False):
        objects.distrust()
        objects.shelf.refresh(anew=True)
        check = _Check(objects, progress)
        for source in objects.shelf.sources():
            check.source(source)
        marks = check.references(roots(), walk)
        return VerifyReport(
            objects=check.objects,
            bytes=check.bytes,
            commits=marks.commits,
            problems=check.problems,
        )


class _Check:
    def __init__(self, objects: LocalObjects, progress: Progress | None) -> None:
        self.objects = 0
        self.bytes = 0
        self.problems: list[Problem] = []
        self._store = objects
        self._good: set[Oid] = set()
        self._progress = progress
        self._total = sum(source.extent() for source in objects.shelf.sources())
        self._done = 0

    def _report(self, where: str, what: str, oid: Oid | None = None) -> None:
        self.problems.append(Problem(oid.hex() if oid else "", where, what))

    # what is stored

    def source(self, source: Source) -> None:
        where = f"{'tail' if isinstance(source, Tail) else 'pack'} {source.id}"
        places: dict[Oid, list[tuple[int, int, int, int]]] = {}
        with ThreadPoolExecutor(2, "ortet-verify") as pool:
            coming: deque[tuple[frame.Lead, Future[list[Oid]]]] = deque()
            for lead in self._leads(source, where):
                coming.append((lead, pool.submit(self._hashes, source, lead)))
                if len(coming) > _AHEAD:
                    self._take(source, where, *coming.popleft(), places)
            while coming:
                self._take(source, where, *coming.popleft(), places)
        if isinstance(source, Pack):
            self._index(source, places)

    def _leads(self, source: Source, where: str) -> Iterator[frame.Lead]:
        """Every frame with a sound header; what lies between is a problem, but not a torn end."""
        at: int | None = 0
        stop, tried = source.extent(), -1
        while at is not None:
            start = at
            try:
                for lead in frame.scan(source.read, start, stop):
                    yield lead
                    start = lead.offset + lead.header.size
                return
            except NotFound as error:
                self._report(where, error.message)
                return
            except OrtetError as error:
                if isinstance(source, Tail) and tried != start:
                    # It may have been in the making, and be whole by now.
                    at, stop, tried = start, source.extent(), start
                    continue
                at = frame.resync(source.read, start + 1, stop)
                if at is not None or not _is_torn(source, start):
                    self._report(where, error.message)

    def _hashes(self, source: Source, lead: frame.Lead) -> list[Oid]:
        """The true ids of a frame's objects, read past every cache."""
        data = memoryview(source.load(lead.offset))
        found: list[Oid] = []
        at = 0
        for _, _, length in lead.rows():
            found.append(self._store.hasher.oid(data[at : at + length]))
            at += length
        return found

    def _take(
        self,
        source: Source,
        where: str,
        lead: frame.Lead,
        hashes: Future[list[Oid]],
        places: dict[Oid, list[tuple[int, int, int, int]]],
    ) -> None:
        self._done += lead.header.size
        if self._progress is not None:
            self._progress(self._done, self._total)
        if lead.header.key_id != self._store.hasher.key_id:
            self._report(where, f"frame at byte {lead.offset} belongs to another key")
            return
        rows = list(lead.rows())
        start = 0
        for oid, kind, length in rows:
            places.setdefault(oid, []).append((lead.offset, start, length, kind))
            start += length
        try:
            found = self._settled(source, lead, hashes)
        except (Corrupt, NotFound) as error:
            if not _is_torn(source, lead.offset):
                self._report(where, f"{error.message} ({len(rows)} objects)", rows[0][0])
            return
        self.objects += len(rows)
        self.bytes += lead.header.raw
        for (oid, _, _), true in zip(rows, found, strict=True):
            if oid == true:
                self._good.add(oid)
            else:
                self._report(where, "does not match its hash", oid)

    def _settled(self, source: Source, lead: frame.Lead, hashes: Future[list[Oid]]) -> list[Oid]:
        """The hashes; read again where a tail's last frame may have been in the making."""
        try:
            return hashes.result()
        except Corrupt:
            if not isinstance(source, Tail):
                raise
            return self._hashes(source, lead)

    def _index(self, pack: Pack, places: dict[Oid, list[tuple[int, int, int, int]]]) -> None:
        """A missing index is no problem, it is made at first use; a wrong one is, and is remade."""
        where = f"index {pack.id}"
        try:
            index = open_index(pack.index_path)
            wrong = sum(tuple(place) not in places.get(oid, ()) for oid, _, *place in index)
            wrong += index.packs != [(pack.id, pack.end)]
            missing = {oid for oid, *_ in index} != places.keys()
        except FileNotFoundError:
            return
        except Corrupt as error:
            self._report(where, error.message)
        else:
            if not wrong and not missing:
                return
            self._report(where, f"does not agree with its pack ({wrong} wrong entries)")
        pack.rebuild()

    # what refers to what

    def references(self, roots: Iterable[Link], walk: Walk) -> Marks:
        marks = Marks(self._store, walk)
        told: set[Oid] = set()

        def trouble(link: Link, parent: Oid | None, error: OrtetError) -> None:
            self._report(_from(link, parent), error.message, link.oid)
            told.add(link.oid)

        def leaf(link: Link, parent: Oid | None) -> None:
            if link.oid not in self._good and link.oid not in told:
                told.add(link.oid)
                if not self._has(link.oid):
                    self._report(_from(link, parent), "is missing or damaged", link.oid)

        marks.add(roots, trouble=trouble, leaf=leaf)
        return marks

    def _has(self, oid: Oid) -> bool:
        """Put while we were reading: not in any frame we saw."""
        try:
            return self._store.hasher.oid(self._store.get(oid)) == oid
        except (NotFound, Corrupt):
            return False


def _is_torn(source: Source, offset: int) -> bool:
    """Whether a bad frame is the last of a tail and was never written to its end: a killed writer
    leaves such, recovery cuts it off, and nobody was told that it is stored."""
    if not isinstance(source, Tail):
        return False
    rest = source.read(offset, source.extent() - offset).rstrip(b"\0")
    try:
        return len(rest) < frame.parse_header(rest.ljust(frame.HEADER_BYTES, b"\0")).size
    except OrtetError:
        return len(rest) < frame.HEADER_BYTES


def _from(link: Link, parent: Oid | None) -> str:
    whose = f"object {parent.hex()}" if parent else "a root"
    return f"{link.kind.name.lower()} referred to by {whose}"
