"""One file with commits and all they need: export writes it, import_ proves it and takes it in.

Both can be interrupted and repeated: an export goes on behind the last whole frame of its `.part`,
an import skips what is already there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from ortet._util.failpoints import reach
from ortet.errors import Conflict, Corrupt, Invalid, Refused, Unsupported
from ortet.history.descend import descend
from ortet.history.references import ERASABLE
from ortet.history.refs import check_name
from ortet.history.transfer.bundle_file import MAGIC, BundleFile, build_head
from ortet.history.transfer.bundlelimits import Limits
from ortet.history.transfer.bundlepart import Part
from ortet.ids import Oid, to_hex
from ortet.objects import frame
from ortet.objects.base import Kind, Link, Objects, Walk

Progress = Callable[[int, int], None]
"""(done, of how many)."""


class BundleReport(msgspec.Struct, frozen=True):
    """What export wrote; `resumed` objects were there from an earlier, interrupted run."""

    path: str
    refs: dict[str, str]
    objects: int
    size: int
    resumed: int


class Imported(msgspec.Struct, frozen=True):
    """Refs of a bundle; and of what was erased where it was made, what stands for it, as what. So
    many `objects` were put, in `bytes`; `known` were there."""

    refs: dict[str, Oid]
    heirs: dict[Oid, tuple[Oid, Kind]]
    objects: int = 0
    bytes: int = 0
    known: int = 0


def export(
    objects: Objects,
    refs: Mapping[str, Oid],
    walk: Walk,
    path: Path,
    *,
    progress: Progress | None = None,
) -> BundleReport:
    """Write the commits `refs` name, with all they need, to `path`.

    A name that no branch could have (such as `main~2`) becomes `bundle-` and its commit's id.
    Conflict("exists") when `path` is something else than a bundle.
    """
    named = {_ref_name(name, oid): oid for name, oid in refs.items()}
    if not named:
        raise Invalid("no_refs", "a bundle needs a commit: name a branch, a tag or an id")
    _check_target(path)
    heirs: dict[Oid, Oid] = {}
    order = _closure(objects, named, _noting(walk, objects, heirs))
    head = build_head(objects.hasher.key_id, named, heirs)
    with Part(path, head, objects.hasher.key_id) as part:
        resumed = len(part.held)
        for oid, data in read_checked(objects, order, part.held):
            part.add(oid, order[oid], data)
            if progress:
                progress(part.count, len(order))
        size = part.finish()
    hexes = {name: to_hex(oid) for name, oid in named.items()}
    return BundleReport(str(path), hexes, len(order), size, resumed)


def import_(
    objects: Objects,
    path: Path,
    walk: Walk,
    *,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> Imported:
    """Put everything a bundle holds and return its refs; the caller flushes and makes them heads.

    What was erased here is not put again: Refused("erased") when nothing stands for it any more.

    Nothing is put before the whole file is proved: checksums, hashes, every reference there and of
    the right kind, names safe, sizes within `limits`. Invalid("not_a_bundle"), Corrupt
    ("bad_bundle", "bundle_truncated"), Unsupported("newer_format", "other_key") or
    Refused("bundle_too_large") otherwise.
    """
    limits = limits or Limits()
    with BundleFile(path, limits) as file:
        if file.head.key_id != objects.hasher.key_id:
            raise Unsupported(
                "other_key",
                f"{path} was exported under key {file.head.key_id.hex()}, this store has "
                f"{objects.hasher.key_id.hex()}: open a store with that key, or none, and import",
            )
        step = _steps(2 * file.size, progress)
        _prove_hashes(file, objects, step)
        heirs = {old: (new, Kind.BLOB) for old, new in file.head.heirs}
        kinds = _prove_graph(file, _following(walk, heirs), limits)
        count = size = 0
        for lead in file.leads:
            for oid, data in _cut(file, lead):
                if kinds[oid] in ERASABLE and objects.heir(oid) != oid:
                    check_heir(objects, oid)
                elif not objects.has(oid):
                    if objects.put(kinds[oid], bytes(data)) != oid:
                        raise file.bad("it was changed while it was read")
                    count, size = count + 1, size + len(data)
            reach("import.after-frame")
            step(lead.header.size)
        return Imported(dict(file.head.refs), heirs, count, size, len(kinds) - count)


def _noting(walk: Walk, objects: Objects, heirs: dict[Oid, Oid]) -> Walk:
    """References with heirs in the place of what was erased; they are noted."""

    def follow(kind: Kind, data: bytes) -> Iterator[Link]:
        for link in walk(kind, data):
            heir = objects.heir(link.oid) if link.kind in ERASABLE else link.oid
            if heir != link.oid:
                heirs[link.oid] = heir
            yield Link(heir, link.kind)

    return follow


def _following(walk: Walk, heirs: dict[Oid, tuple[Oid, Kind]]) -> Walk:
    """The same for a bundle, which says what its heirs are; it learns of which kind."""

    def follow(kind: Kind, data: bytes) -> Iterator[Link]:
        for link in walk(kind, data):
            if link.oid in heirs and link.kind in ERASABLE:
                heir = heirs[link.oid][0]
                heirs[link.oid] = heir, link.kind
                yield Link(heir, link.kind)
            else:
                yield link

    return follow


def check_heir(objects: Objects, oid: Oid) -> None:
    if not objects.has(objects.heir(oid)):
        raise Refused(
            "erased",
            "this bundle holds what was erased here, and nothing stands for it any more: import "
            "it into another store",
            oid=oid.hex(),
        )


def _prove_hashes(file: BundleFile, objects: Objects, step: Callable[[int], None]) -> None:
    for lead in file.leads:
        for oid, data in _cut(file, lead):
            if objects.hasher.oid(data) != oid:
                raise file.bad(f"the bytes of object {oid.hex()} do not have that hash")
        step(lead.header.size)


def _prove_graph(file: BundleFile, walk: Walk, limits: Limits) -> dict[Oid, Kind]:
    """The kind each object has by what refers to it; the file holds these objects and no other."""

    def links_of(link: Link) -> Iterator[Link]:
        if link.oid not in file:
            raise file.bad(f"object {link.oid.hex()} is missing")
        with file.errors():
            yield from walk(link.kind, file.get(link.oid))

    kinds: dict[Oid, Kind] = {}
    files: dict[Link, int] = {}
    for link, links in descend([Link(oid, Kind.COMMIT) for _, oid in file.head.refs], links_of):
        if link.oid not in file:
            raise file.bad(f"object {link.oid.hex()} is missing")
        kinds.setdefault(link.oid, link.kind)
        if link.kind in (Kind.TREE, Kind.IMAGE):
            files[link] = sum(files.get(child, 1) for child in links)
            limits.check_files(files[link])
    if len(kinds) != len(file):
        raise file.bad(f"{len(file) - len(kinds)} of its objects belong to no commit")
    return kinds


def _cut(file: BundleFile, lead: frame.Lead) -> Iterator[tuple[Oid, memoryview]]:
    data, start = memoryview(file.load(lead)), 0
    for oid, _, length in lead.rows():
        yield oid, data[start : start + length]
        start += length


def _closure(objects: Objects, refs: Mapping[str, Oid], walk: Walk) -> dict[Oid, Kind]:
    """Every object the refs need, children first: an import that is cut short leaves no holes."""

    def links_of(link: Link) -> list[Link]:
        return list(walk(link.kind, get_checked(objects, link.oid)))

    order: dict[Oid, Kind] = {}
    for link, _ in descend([Link(oid, Kind.COMMIT) for oid in refs.values()], links_of):
        order.setdefault(link.oid, link.kind)
    return order


def read_checked(
    objects: Objects, order: Mapping[Oid, Kind], held: set[Oid]
) -> Iterator[tuple[Oid, bytes]]:
    """Blobs as they lie in the store, which is fastest, then all else in order."""
    blobs = [oid for oid, kind in order.items() if kind is Kind.BLOB and oid not in held]
    for oid, data in objects.get_many(blobs):
        yield oid, _checked(objects, oid, data)
    for oid, kind in order.items():
        if kind is not Kind.BLOB and oid not in held:
            yield oid, get_checked(objects, oid)


def get_checked(objects: Objects, oid: Oid) -> bytes:
    return _checked(objects, oid, objects.get(oid))


def _checked(objects: Objects, oid: Oid, data: bytes) -> bytes:
    if objects.hasher.oid(data) != oid:
        raise Corrupt("bad_hash", f"object {oid.hex()} does not match its hash: run `ortet verify`")
    return data


def _ref_name(name: str, oid: Oid) -> str:
    try:
        return check_name(name)
    except Invalid:
        return f"bundle-{to_hex(oid)[:12]}"


def _check_target(path: Path) -> None:
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) == MAGIC:
                return
    except FileNotFoundError:
        return
    except OSError as error:
        raise _exists(path) from error
    raise _exists(path)


def _exists(path: Path) -> Conflict:
    return Conflict("exists", f"{path} is there and is no bundle: choose another name")


def _steps(total: int, progress: Progress | None) -> Callable[[int], None]:
    done = 0

    def step(size: int) -> None:
        nonlocal done
        done += size
        if progress:
            progress(min(done, total), total)

    return step
