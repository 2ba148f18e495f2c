"""Export and import of bundles: one file with commits and everything they need.

Both can be interrupted and repeated. An export continues after the last complete frame of its
`.part` file. An import skips objects that are already stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from ortet._util.failpoints import failpoint
from ortet.errors import Conflict, Corrupt, Invalid, Refused, Unsupported
from ortet.history.references import ERASABLE_KINDS, walk_postorder
from ortet.history.refs import check_ref_name
from ortet.history.transfer.bundle_file import (
    MAGIC,
    BundleFile,
    BundleLimits,
    PartialBundle,
    build_header,
)
from ortet.ids import Oid, to_hex
from ortet.objects import frame
from ortet.objects.base import Kind, ObjectRef, ObjectStore, ReferenceParser

Progress = Callable[[int, int], None]
"""Called with (done, total)."""


class BundleReport(msgspec.Struct, frozen=True):
    """The result of an export.

    Attributes:
        path: Path of the bundle.
        refs: Commit ids by name of the branch or tag.
        objects: Number of objects in the bundle.
        size: Size of the bundle in bytes.
        resumed: Number of objects that an earlier, interrupted run had written.
    """

    path: str
    refs: dict[str, str]
    objects: int
    size: int
    resumed: int


class BundleImport(msgspec.Struct, frozen=True):
    """The result of an import.

    `refs` are the refs of the bundle. `heirs` maps an object that was erased at its origin to its
    replacement and kind. `objects` new objects with `bytes` bytes were stored; `known` existed
    before.
    """

    refs: dict[str, Oid]
    heirs: dict[Oid, tuple[Oid, Kind]]
    objects: int = 0
    bytes: int = 0
    known: int = 0


def export_bundle(
    objects: ObjectStore,
    refs: Mapping[str, Oid],
    parse_references: ReferenceParser,
    path: Path,
    *,
    progress: Progress | None = None,
) -> BundleReport:
    """Write the commits that `refs` name, with everything they need, to `path`.

    A name that no branch can have (such as `main~2`) becomes `bundle-` and its commit's id. Raises
    Conflict("exists") if `path` exists and is not a bundle.
    """
    named = {_ref_name(name, oid): oid for name, oid in refs.items()}
    if not named:
        raise Invalid("no_refs", "a bundle needs a commit: name a branch, a tag or an id")
    _check_target(path)
    heirs: dict[Oid, Oid] = {}
    order = _closure(objects, named, _collect_replacements(parse_references, objects, heirs))
    head = build_header(objects.hasher.key_id, named, heirs)
    with PartialBundle(path, head, objects.hasher.key_id) as part:
        resumed = len(part.written_oids)
        for oid, data in read_checked(objects, order, part.written_oids):
            part.add(oid, order[oid], data)
            if progress:
                progress(part.count, len(order))
        size = part.finish()
    hexes = {name: to_hex(oid) for name, oid in named.items()}
    return BundleReport(str(path), hexes, len(order), size, resumed)


def import_bundle(
    objects: ObjectStore,
    path: Path,
    parse_references: ReferenceParser,
    *,
    limits: BundleLimits | None = None,
    progress: Progress | None = None,
) -> BundleImport:
    """Store everything a bundle holds and return its refs.

    The caller flushes and creates the heads. The whole file is verified first: checksums, hashes,
    references and their kinds, safe names, and sizes within `limits`. An object that was erased
    here is not stored again.

    Raises:
        Invalid: kind "not_a_bundle".
        Corrupt: kind "bad_bundle" or "bundle_truncated".
        Unsupported: kind "newer_format" or "other_key".
        Refused: kind "bundle_too_large", or "erased" if an erased object has no replacement here.
    """
    limits = limits or BundleLimits()
    with BundleFile(path, limits) as file:
        if file.header.key_id != objects.hasher.key_id:
            raise Unsupported(
                "other_key",
                f"{path} was exported under key {file.header.key_id.hex()}, this store has "
                f"{objects.hasher.key_id.hex()}: open a store with that key, or none, and import",
            )
        step = _step_counter(2 * file.size, progress)
        _verify_hashes(file, objects, step)
        heirs = {old: (new, Kind.BLOB) for old, new in file.header.heirs}
        kinds = _verify_graph(file, _apply_replacements(parse_references, heirs), limits)
        count = size = 0
        for frame_info in file.frames:
            for oid, data in _split_objects(file, frame_info):
                if kinds[oid] in ERASABLE_KINDS and objects.replacement_of(oid) != oid:
                    check_replacement(objects, oid)
                elif not objects.has(oid):
                    if objects.put(kinds[oid], bytes(data)) != oid:
                        raise file.corrupt("it was changed while it was read")
                    count, size = count + 1, size + len(data)
            failpoint("import.after-frame")
            step(frame_info.header.size)
        return BundleImport(dict(file.header.refs), heirs, count, size, len(kinds) - count)


def verify_bundle(
    objects: ObjectStore, path: Path, parse_references: ReferenceParser
) -> dict[str, Oid]:
    """Check every byte, hash and reference of a bundle, and return its refs. Stores nothing.

    Raises:
        Corrupt: If the bundle is damaged or incomplete.
        NotFound: If there is no such file.
    """
    with BundleFile(path, BundleLimits()) as file:
        _verify_hashes(file, objects, lambda _: None)
        replacements = {old: (new, Kind.BLOB) for old, new in file.header.heirs}
        _verify_graph(file, _apply_replacements(parse_references, replacements), BundleLimits())
        return dict(file.header.refs)


def _collect_replacements(
    parse_references: ReferenceParser, objects: ObjectStore, replacements: dict[Oid, Oid]
) -> ReferenceParser:
    """Return a parser that replaces erased objects, and records them in `replacements`."""

    def follow(kind: Kind, data: bytes) -> Iterator[ObjectRef]:
        for link in parse_references(kind, data):
            heir = objects.replacement_of(link.oid) if link.kind in ERASABLE_KINDS else link.oid
            if heir != link.oid:
                replacements[link.oid] = heir
            yield ObjectRef(heir, link.kind)

    return follow


def _apply_replacements(
    parse_references: ReferenceParser, replacements: dict[Oid, tuple[Oid, Kind]]
) -> ReferenceParser:
    """Return a parser that uses the replacements of a bundle, and records their kinds."""

    def follow(kind: Kind, data: bytes) -> Iterator[ObjectRef]:
        for link in parse_references(kind, data):
            if link.oid in replacements and link.kind in ERASABLE_KINDS:
                heir = replacements[link.oid][0]
                replacements[link.oid] = heir, link.kind
                yield ObjectRef(heir, link.kind)
            else:
                yield link

    return follow


def check_replacement(objects: ObjectStore, oid: Oid) -> None:
    """Raise Refused("erased") if the replacement of an erased object is not stored."""
    if not objects.has(objects.replacement_of(oid)):
        raise Refused(
            "erased",
            "this bundle holds what was erased here, and nothing stands for it any more: import "
            "it into another store",
            oid=oid.hex(),
        )


def _verify_hashes(file: BundleFile, objects: ObjectStore, step: Callable[[int], None]) -> None:
    for frame_info in file.frames:
        for oid, data in _split_objects(file, frame_info):
            if objects.hasher.oid(data) != oid:
                raise file.corrupt(f"the bytes of object {oid.hex()} do not have that hash")
        step(frame_info.header.size)


def _verify_graph(
    file: BundleFile, parse_references: ReferenceParser, limits: BundleLimits
) -> dict[Oid, Kind]:
    """Return the kind of each object by its references.

    Every object of the file must be referenced.
    """

    def links_of(link: ObjectRef) -> Iterator[ObjectRef]:
        if link.oid not in file:
            raise file.corrupt(f"object {link.oid.hex()} is missing")
        with file.translate_errors():
            yield from parse_references(link.kind, file.get(link.oid))

    kinds: dict[Oid, Kind] = {}
    files: dict[ObjectRef, int] = {}
    for link, links in walk_postorder(
        [ObjectRef(oid, Kind.COMMIT) for _, oid in file.header.refs], links_of
    ):
        if link.oid not in file:
            raise file.corrupt(f"object {link.oid.hex()} is missing")
        kinds.setdefault(link.oid, link.kind)
        if link.kind in (Kind.TREE, Kind.IMAGE):
            files[link] = sum(files.get(child, 1) for child in links)
            limits.check_files(files[link])
    if len(kinds) != len(file):
        raise file.corrupt(f"{len(file) - len(kinds)} of its objects belong to no commit")
    return kinds


def _split_objects(
    file: BundleFile, frame_info: frame.FrameInfo
) -> Iterator[tuple[Oid, memoryview]]:
    data, start = memoryview(file.load(frame_info)), 0
    for oid, _, length in frame_info.rows():
        yield oid, data[start : start + length]
        start += length


def _closure(
    objects: ObjectStore, refs: Mapping[str, Oid], parse_references: ReferenceParser
) -> dict[Oid, Kind]:
    """Return every object the refs need, children first: an interrupted import leaves no gaps."""

    def links_of(link: ObjectRef) -> list[ObjectRef]:
        return list(parse_references(link.kind, get_checked(objects, link.oid)))

    order: dict[Oid, Kind] = {}
    for link, _ in walk_postorder([ObjectRef(oid, Kind.COMMIT) for oid in refs.values()], links_of):
        order.setdefault(link.oid, link.kind)
    return order


def read_checked(
    objects: ObjectStore, order: Mapping[Oid, Kind], skip: set[Oid]
) -> Iterator[tuple[Oid, bytes]]:
    """Yield blobs in storage order, which is fastest, then all other objects in the given order."""
    blobs = [oid for oid, kind in order.items() if kind is Kind.BLOB and oid not in skip]
    for oid, data in objects.get_many(blobs):
        yield oid, _check_hash(objects, oid, data)
    for oid, kind in order.items():
        if kind is not Kind.BLOB and oid not in skip:
            yield oid, get_checked(objects, oid)


def get_checked(objects: ObjectStore, oid: Oid) -> bytes:
    """Return the bytes of an object. Raises Corrupt if they do not match its hash."""
    return _check_hash(objects, oid, objects.get(oid))


def _check_hash(objects: ObjectStore, oid: Oid, data: bytes) -> bytes:
    if objects.hasher.oid(data) != oid:
        raise Corrupt("bad_hash", f"object {oid.hex()} does not match its hash: run `ortet verify`")
    return data


def _ref_name(name: str, oid: Oid) -> str:
    try:
        return check_ref_name(name)
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
        raise _exists_error(path) from error
    raise _exists_error(path)


def _exists_error(path: Path) -> Conflict:
    return Conflict("exists", f"{path} is there and is no bundle: choose another name")


def _step_counter(total: int, progress: Progress | None) -> Callable[[int], None]:
    done = 0

    def step(size: int) -> None:
        nonlocal done
        done += size
        if progress:
            progress(min(done, total), total)

    return step
