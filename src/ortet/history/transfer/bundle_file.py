"""The format of a bundle file, and its reader: a header with refs, frames as in packs, a trailer.

header   "<8sHHI" magic, version, flags, length of body · body · checksum of all before
body     canonical bytes of BundleHeader
frames   as in objects/frame.py, all under the header's key id
trailer  "<8sQQQ" magic, objects, frames, raw bytes · checksum of header, of the header of each
         frame (which holds the sums of its table and payload) and of the trailer's numbers
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import msgspec

from ortet._util.codec import Compressor, StoredRecord, checksum, decode, encode
from ortet._util.failpoints import failpoint
from ortet.errors import Corrupt, Invalid, NotFound, OrtetError, Refused, Unavailable, Unsupported
from ortet.history.refs import check_ref_name
from ortet.ids import OID_BYTES, Oid
from ortet.objects import frame
from ortet.objects.base import Kind
from ortet.objects.source import FrameCache
from ortet.objects.tail import storage_error, sync_directory

MAGIC = b"\xa7ORTBNDL"
TRAILER_MAGIC = b"\xa7ORTDONE"
VERSION = 1
CHECKSUM_BYTES = 8

_HEAD = struct.Struct("<8sHHI")
_TRAILER = struct.Struct("<8sQQQ")
TRAILER_BYTES = _TRAILER.size + CHECKSUM_BYTES
_MAX_HEADER_BODY_BYTES = 16 * 1024 * 1024

_RATIO_CHECK_MIN_BYTES = 1 << 30


class BundleHeader(StoredRecord, frozen=True):
    """The header of a bundle. Refs are sorted by name.

    `heirs` are (erased object, its replacement). Records in the bundle still name the erased
    object.
    """

    key_id: bytes
    refs: list[tuple[str, Oid]]
    heirs: list[tuple[Oid, Oid]] = []


def build_header(
    key_id: bytes, refs: Mapping[str, Oid], replacements: Mapping[Oid, Oid] | None = None
) -> bytes:
    """Return the bytes of a bundle header."""
    parts: tuple[object, ...] = (key_id, sorted(refs.items()))
    body = encode((*parts, sorted(replacements.items())) if replacements else parts)
    start = _HEAD.pack(MAGIC, VERSION, 0, len(body)) + body
    return start + checksum(start)


def build_trailer(objects: int, raw: int, header: bytes, frame_headers: list[bytes]) -> bytes:
    """Return the bytes of a bundle trailer."""
    numbers = _TRAILER.pack(TRAILER_MAGIC, objects, len(frame_headers), raw)
    return numbers + checksum(header, *frame_headers, numbers)


class BundleFile:
    """A bundle opened for reading. Header, trailer and the table of every frame are verified."""

    def __init__(self, path: Path, limits: BundleLimits) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise NotFound("no_file", f"there is no {path}: check the path") from error
        except OSError as error:
            raise Unavailable(
                "no_access", f"cannot read {path} ({error.strerror}): check its permissions"
            ) from error
        try:
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):
                raise _not_a_bundle(path)
            self._open(limits)
        except BaseException:
            os.close(self._fd)
            raise

    def _open(self, limits: BundleLimits) -> None:
        self.size = os.fstat(self._fd).st_size
        self._cache = FrameCache()
        self._header_bytes = _read_header(self.path, self.read)
        self.header = _parse_header(self.path, self._header_bytes)
        self._trailer = self._read_trailer()
        with self.translate_errors():
            self.frames = self._scan_frames(limits)
            self._check_trailer()
            self._locations = self._build_index()

    def __enter__(self) -> BundleFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)

    def __contains__(self, oid: Oid) -> bool:
        return oid in self._locations

    def __len__(self) -> int:
        return len(self._locations)

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes at an offset, fewer at the end."""
        return os.pread(self._fd, length, offset)

    def get(self, oid: Oid) -> bytes:
        """Return the bytes of an object."""
        number, start, length = self._locations[oid]
        key = ("", number)
        data = self._cache.get(key)
        if data is None:
            data = self.load(self.frames[number])
            self._cache.add(key, data)
        return data[start : start + length]

    def load(self, frame_info: frame.FrameInfo) -> bytes:
        """Return the objects of a frame one after another. The payload is verified."""
        header = frame_info.header
        with self.translate_errors():
            payload = self.read(frame_info.offset + header.payload_start, header.stored)
            return frame.unpack(header, payload, offset=frame_info.offset)

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Translate errors about stored data into errors about this file."""
        try:
            yield
        except Corrupt as error:
            raise self.corrupt(
                error.message.partition("; run ")[0].partition(": run ")[0]
            ) from error
        except Unsupported as error:
            raise Unsupported(error.kind, f"{self.path} cannot be read: {error.message}") from error

    def corrupt(self, why: str) -> Corrupt:
        """Return the Corrupt error for this file."""
        return Corrupt(
            "bad_bundle",
            f"{self.path} is not sound ({why}): nothing was imported; get or export it again",
        )

    def _read_trailer(self) -> bytes:
        start = self.size - TRAILER_BYTES
        data = self.read(start, TRAILER_BYTES) if start >= len(self._header_bytes) else b""
        if data[: len(TRAILER_MAGIC)] != TRAILER_MAGIC:
            raise Corrupt(
                "bundle_truncated",
                f"{self.path} ends too early: copy it again, or let the export finish",
            )
        return data

    def _scan_frames(self, limits: BundleLimits) -> list[frame.FrameInfo]:
        """Read all frame headers.

        Refuse a bundle that is too large before anything is decompressed.
        """
        leads: list[frame.FrameInfo] = []
        objects = raw = 0
        end, stop = len(self._header_bytes), self.size - TRAILER_BYTES
        for frame_info in frame.scan(self.read, end, stop):
            if frame_info.header.key_id != self.header.key_id:
                raise self.corrupt(f"the frame at byte {frame_info.offset} is under another key")
            objects += frame_info.header.count
            raw += frame_info.header.raw
            limits.check(objects=objects, raw=raw, stored=self.size)
            leads.append(frame_info)
            end = frame_info.offset + frame_info.header.size
        if end != stop:
            raise self.corrupt(f"there is no frame at byte {end}")
        return leads

    def _check_trailer(self) -> None:
        objects = sum(frame_info.header.count for frame_info in self.frames)
        raw = sum(frame_info.header.raw for frame_info in self.frames)
        headers = [self.read(frame_info.offset, frame.HEADER_BYTES) for frame_info in self.frames]
        if self._trailer != build_trailer(objects, raw, self._header_bytes, headers):
            raise self.corrupt("its end does not match what is before it")

    def _build_index(self) -> dict[Oid, tuple[int, int, int]]:
        spots: dict[Oid, tuple[int, int, int]] = {}
        for number, frame_info in enumerate(self.frames):
            start = 0
            for oid, _, length in frame_info.rows():
                if spots.setdefault(oid, (number, start, length)) != (number, start, length):
                    raise self.corrupt(f"object {oid.hex()} is there twice")
                start += length
        return spots


def _read_header(path: Path, read: frame.ReadAt) -> bytes:
    start = read(0, _HEAD.size)
    if start[: len(MAGIC)] != MAGIC:
        raise _not_a_bundle(path)
    if len(start) == _HEAD.size:
        _, version, _, length = _HEAD.unpack(start)
        if version > VERSION:
            raise Unsupported(
                "newer_format",
                f"{path} is a bundle of format {version}, known here is {VERSION}: upgrade ortet",
            )
        body = (
            read(_HEAD.size, length + CHECKSUM_BYTES) if length <= _MAX_HEADER_BODY_BYTES else b""
        )
        if (
            len(body) == length + CHECKSUM_BYTES
            and checksum(start, body[:-CHECKSUM_BYTES]) == body[-CHECKSUM_BYTES:]
        ):
            return start + body
    raise Corrupt(
        "bad_bundle", f"the header of {path} is damaged or cut short: get or export it again"
    )


def _not_a_bundle(path: Path) -> Invalid:
    return Invalid("not_a_bundle", f"{path} is not a bundle: give a file made by export")


def _parse_header(path: Path, data: bytes) -> BundleHeader:
    head = decode(BundleHeader, data[_HEAD.size : -CHECKSUM_BYTES])
    names = [check_ref_name(name) for name, _ in head.refs]
    if not names or names != sorted(set(names)) or len(head.key_id) != 8:
        raise Corrupt("bad_bundle", f"the header of {path} makes no sense: export it again")
    oids = [oid for _, oid in head.refs] + [oid for pair in head.heirs for oid in pair]
    if any(len(oid) != OID_BYTES for oid in oids):
        raise Corrupt("bad_bundle", f"a ref of {path} is no object id: export it again")
    return head


# A partly written bundle, `NAME.part`. An interrupted export leaves it for the next export.


class PartialBundle:
    """Collects objects into frames. `written_oids` are in complete frames of an earlier run."""

    def __init__(self, path: Path, header: bytes, key_id: bytes) -> None:
        self._path = path
        self._part_path = path.with_name(path.name + ".part")
        self._header = header
        self._key_id = key_id
        self._compressor = Compressor()
        self._frame_headers: list[bytes] = []
        self._raw_bytes = 0
        self._items: list[frame.Item] = []
        self._pending_bytes = 0
        self.written_oids: set[Oid] = set()
        self.count = 0

    def __enter__(self) -> PartialBundle:
        try:
            self._fd = self._lock()
            try:
                self._resume()
            except BaseException:
                os.close(self._fd)
                raise
        except OSError as error:
            raise self._write_error(error) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)

    def add(self, oid: Oid, kind: Kind, data: bytes) -> None:
        """Add an object."""
        if (
            self._pending_bytes + len(data) > frame.FRAME_BYTES
            or len(self._items) >= frame.FRAME_OBJECTS
        ):
            self._flush()
        self._items.append((oid, kind, data))
        self._pending_bytes += len(data)
        self.count += 1

    def finish(self) -> int:
        """Write the trailer, rename the file durably, and return its size."""
        self._flush()
        try:
            self._write(
                build_trailer(self.count, self._raw_bytes, self._header, self._frame_headers)
            )
            os.fsync(self._fd)
            failpoint("export.before-rename")
            os.replace(self._part_path, self._path)
            sync_directory(self._path.parent)
        except OSError as error:
            raise self._write_error(error) from error
        return self._end

    def _flush(self) -> None:
        if not self._items:
            return
        data = frame.build(self._items, self._key_id, self._compressor)
        try:
            self._write(data)
            failpoint("export.after-frame")
        except OSError as error:
            raise self._write_error(error) from error
        self._frame_headers.append(data[: frame.HEADER_BYTES])
        self._raw_bytes += self._pending_bytes
        self._items, self._pending_bytes = [], 0

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            done = os.pwrite(self._fd, view, self._end)
            self._end += done
            view = view[done:]

    def _lock(self) -> int:
        fd = os.open(self._part_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The previous export may have finished. The locked file is then the bundle itself.
            if os.fstat(fd).st_ino != os.stat(self._part_path).st_ino:
                raise BlockingIOError
        except (BlockingIOError, FileNotFoundError) as error:
            os.close(fd)
            raise Unavailable(
                "export_busy", f"{self._path} is being written by another export: wait for it"
            ) from error
        return fd

    def _resume(self) -> None:
        """Keep the complete frames of a part file with the same header. Otherwise start again."""
        self._end = 0
        if os.pread(self._fd, len(self._header), 0) == self._header:
            self._end = len(self._header)
            self._load_frames(os.fstat(self._fd).st_size)
        os.ftruncate(self._fd, self._end)
        if not self._end:
            self._write(self._header)

    def _load_frames(self, stop: int) -> None:
        def read(offset: int, length: int) -> bytes:
            return os.pread(self._fd, length, offset)

        try:
            for frame_info in frame.scan(read, self._end, stop):
                header = frame_info.header
                payload = read(frame_info.offset + header.payload_start, header.stored)
                frame.check_payload(header, payload, offset=frame_info.offset)
                self._frame_headers.append(read(frame_info.offset, frame.HEADER_BYTES))
                self.written_oids.update([oid for oid, _, _ in frame_info.rows()])
                self.count += header.count
                self._raw_bytes += header.raw
                self._end = frame_info.offset + header.size
        except (Corrupt, Unsupported):
            return  # the earlier run stopped here

    def _write_error(self, error: OSError) -> OrtetError:
        return storage_error(error, f"writing {self._part_path}, which a repeated export continues")


class BundleLimits(msgspec.Struct, frozen=True):
    """Limits of an import. Above one of them it raises Refused("bundle_too_large").

    The check comes before the import uses the space. In any case, no object is larger than a frame,
    and no frame is larger than frame.MAX_RAW.
    """

    objects: int = 20_000_000
    raw_bytes: int = 1 << 42  # of all objects, decompressed
    ratio: int = 500  # decompressed to stored size, above 1 GiB: real data compresses less
    files: int = 1_000_000_000  # of one image: nested shared trees can name a huge number of files
    room: int | None = None  # bytes free in the store; None: not known here

    def check(self, *, objects: int, raw: int, stored: int) -> None:
        """Raise Refused if the bundle exceeds a limit."""
        if objects > self.objects:
            raise _too_large(f"it has more than {self.objects} objects")
        if raw > self.raw_bytes:
            raise _too_large(f"it would expand to more than {self.raw_bytes} bytes")
        if raw > _RATIO_CHECK_MIN_BYTES and raw > self.ratio * stored:
            raise _too_large(f"its {stored} bytes would expand more than {self.ratio}-fold")
        if self.room is not None and stored > self.room:
            raise _too_large(f"it needs {stored} bytes and there is room for {self.room}")

    def check_files(self, files: int) -> None:
        """Raise Refused if one image has too many files."""
        if files > self.files:
            raise _too_large(f"one of its directories would hold more than {self.files} files")


def _too_large(why: str) -> Refused:
    return Refused(
        "bundle_too_large",
        f"the bundle was not imported, {why}: if you trust it, make room or raise the limit",
    )
