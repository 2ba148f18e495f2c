"""A partly written bundle, `NAME.part`. An interrupted export leaves it for the next export."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from ortet._util.codec import Compressor
from ortet._util.failpoints import failpoint
from ortet.errors import Corrupt, OrtetError, Unavailable, Unsupported
from ortet.history.transfer.bundle_file import build_trailer
from ortet.ids import Oid
from ortet.objects import frame
from ortet.objects.base import Kind
from ortet.objects.tail import storage_error, sync_directory


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
            for lead in frame.scan(read, self._end, stop):
                header = lead.header
                payload = read(lead.offset + header.payload_start, header.stored)
                frame.check_payload(header, payload, offset=lead.offset)
                self._frame_headers.append(read(lead.offset, frame.HEADER_BYTES))
                self.written_oids.update([oid for oid, _, _ in lead.rows()])
                self.count += header.count
                self._raw_bytes += header.raw
                self._end = lead.offset + header.size
        except (Corrupt, Unsupported):
            return  # the earlier run stopped here

    def _write_error(self, error: OSError) -> OrtetError:
        return storage_error(error, f"writing {self._part_path}, which a repeated export continues")
