"""A bundle on its way: `NAME.part`, which an interrupted export leaves to the next."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from ortet._util.codec import Compressor
from ortet._util.failpoints import reach
from ortet.errors import Corrupt, OrtetError, Unavailable, Unsupported
from ortet.history.transfer.bundle_file import build_trailer
from ortet.ids import Oid
from ortet.objects import frame
from ortet.objects.base import Kind
from ortet.objects.tail import storage_error, sync_directory


class Part:
    """Collects objects into frames. `held` is what whole frames of an earlier run hold."""

    def __init__(self, path: Path, head: bytes, key_id: bytes) -> None:
        self._path = path
        self._part = path.with_name(path.name + ".part")
        self._head = head
        self._key_id = key_id
        self._compressor = Compressor()
        self._headers: list[bytes] = []
        self._raw = 0
        self._items: list[frame.Item] = []
        self._waiting = 0
        self.held: set[Oid] = set()
        self.count = 0

    def __enter__(self) -> Part:
        try:
            self._fd = self._lock()
            try:
                self._resume()
            except BaseException:
                os.close(self._fd)
                raise
        except OSError as error:
            raise self._failed(error) from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)

    def add(self, oid: Oid, kind: Kind, data: bytes) -> None:
        if self._waiting + len(data) > frame.FRAME_BYTES or len(self._items) >= frame.FRAME_OBJECTS:
            self._flush()
        self._items.append((oid, kind, data))
        self._waiting += len(data)
        self.count += 1

    def finish(self) -> int:
        """Give the file its name, durably; returns its size."""
        self._flush()
        try:
            self._write(build_trailer(self.count, self._raw, self._head, self._headers))
            os.fsync(self._fd)
            reach("export.before-rename")
            os.replace(self._part, self._path)
            sync_directory(self._path.parent)
        except OSError as error:
            raise self._failed(error) from error
        return self._end

    def _flush(self) -> None:
        if not self._items:
            return
        data = frame.build(self._items, self._key_id, self._compressor)
        try:
            self._write(data)
            reach("export.after-frame")
        except OSError as error:
            raise self._failed(error) from error
        self._headers.append(data[: frame.HEADER_BYTES])
        self._raw += self._waiting
        self._items, self._waiting = [], 0

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            done = os.pwrite(self._fd, view, self._end)
            self._end += done
            view = view[done:]

    def _lock(self) -> int:
        fd = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The one before us may have finished, and what we hold is then the bundle itself.
            if os.fstat(fd).st_ino != os.stat(self._part).st_ino:
                raise BlockingIOError
        except (BlockingIOError, FileNotFoundError) as error:
            os.close(fd)
            raise Unavailable(
                "export_busy", f"{self._path} is being written by another export: wait for it"
            ) from error
        return fd

    def _resume(self) -> None:
        """Keep the whole frames of a part with our header; of any other, nothing."""
        self._end = 0
        if os.pread(self._fd, len(self._head), 0) == self._head:
            self._end = len(self._head)
            self._keep_frames(os.fstat(self._fd).st_size)
        os.ftruncate(self._fd, self._end)
        if not self._end:
            self._write(self._head)

    def _keep_frames(self, stop: int) -> None:
        def read(offset: int, length: int) -> bytes:
            return os.pread(self._fd, length, offset)

        try:
            for lead in frame.scan(read, self._end, stop):
                header = lead.header
                payload = read(lead.offset + header.lead, header.stored)
                frame.check_payload(header, payload, offset=lead.offset)
                self._headers.append(read(lead.offset, frame.HEADER_BYTES))
                self.held.update([oid for oid, _, _ in lead.rows()])
                self.count += header.count
                self._raw += header.raw
                self._end = lead.offset + header.size
        except (Corrupt, Unsupported):
            return  # written no further than here

    def _failed(self, error: OSError) -> OrtetError:
        return storage_error(error, f"writing {self._part}, which a repeated export continues")
