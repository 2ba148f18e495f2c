"""Turns a tail into a pack.

A tail has small and raw frames, because it is written for low latency. Sealing rewrites them into a
few large compressed frames. There, similar versions of a tree page compress well together.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from ortet._util.codec import Compressor
from ortet._util.failpoints import failpoint
from ortet.backends.base import Bucket
from ortet.errors import Corrupt, Unsupported
from ortet.ids import Oid
from ortet.objects import frame
from ortet.objects.frame import FrameBatches
from ortet.objects.pack_index import IndexEntry, encode_index, write_index
from ortet.objects.tail import PACK_PART_SUFFIX, Tail, pack_key, storage_error

_REWRITE_LOOSE_DIVISOR = 8
"""A tail is rewritten if at least one byte in this many is in loose (small) frames."""


def seal(tail: Tail, index_path: Path, bucket: Bucket, *, solid: bool = False) -> int:
    """Turn a tail into a pack and return the pack's size.

    Syncs the tail, writes its index, and puts it into the bucket. A tail that is `solid` is not
    rewritten. Handles that have the tail open can still read it.
    """
    failpoint("seal.begin")
    tail.sync()
    part = tail.path.with_suffix(PACK_PART_SUFFIX)
    try:
        written = None if solid else _write_solid(tail, part)
        if written is None:
            tail.trim()
            path, size = tail.path, tail.end
            entries = [(oid, 0, *location[1:]) for oid, location in tail.locations()]
        else:
            path, (size, entries) = part, written
        write_index(index_path, encode_index([(tail.id, size)], entries))
        failpoint("seal.after-index")
        tail.published = True
        bucket.put_file(pack_key(tail.id), path)
        failpoint("seal.after-put")
        tail.path.unlink(missing_ok=True)
    except OSError as error:
        raise storage_error(error, "sealing a pack") from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    return size


def _write_solid(tail: Tail, path: Path) -> tuple[int, list[IndexEntry]] | None:
    """Rewrite the tail into a new, synced file.

    Return None if the tail should be used unchanged.
    """
    leads = list(frame.scan(tail.read, 0, tail.end))
    loose = sum(frame_info.header.size for frame_info in leads if _is_loose(frame_info.header))
    if len(leads) < 2 or loose * _REWRITE_LOOSE_DIVISOR < tail.end:
        return None
    try:
        # Never write into an existing file: the one that a killed process left may also be a pack
        # by now.
        path.unlink(missing_ok=True)
        with open(path, "xb") as file:
            solid = _SolidPackWriter(file)
            for frame_info in leads:
                solid.add(tail, frame_info)
            solid.finish()
            file.flush()
            os.fsync(file.fileno())
    except (Corrupt, Unsupported, OSError):
        # Keep the tail unchanged. `verify` must find the damaged frame, or the disk is full.
        path.unlink(missing_ok=True)
        return None
    written = {entry[0] for entry in solid.entries}
    if not all(oid in written for oid, _ in tail.locations()):
        # The tail has the only copy and is about to be deleted. Keep it if any object was not
        # rewritten.
        path.unlink(missing_ok=True)
        return None
    return solid.size, solid.entries


def _is_loose(header: frame.FrameHeader) -> bool:
    return header.raw < frame.FRAME_BYTES // (1 if header.codec == frame.RAW else 2)


class _SolidPackWriter:
    """Writes the frames of a tail to a file and merges the loose ones."""

    def __init__(self, file: BinaryIO) -> None:
        self.size = 0
        self.entries: list[IndexEntry] = []
        self._file = file
        self._batches = FrameBatches()
        self._compressor = Compressor()
        self._key_id = b""

    def add(self, tail: Tail, frame_info: frame.FrameInfo) -> None:
        header, rows = frame_info.header, list(frame_info.rows())
        if not _is_loose(header) or (self._key_id and header.key_id != self._key_id):
            self._write(tail.read(frame_info.offset, header.size), rows)
            return
        self._key_id = header.key_id
        payload = tail.read(frame_info.offset + header.payload_start, header.stored)
        data, start = frame.unpack(header, payload, offset=frame_info.offset), 0
        for oid, kind, length in rows:
            location = tail.find(oid)
            if (
                location is None or location[1] == frame_info.offset
            ):  # skip it if a later frame has it
                full = self._batches.add((oid, kind, data[start : start + length]))
                if full is not None:
                    self._build(full)
            start += length

    def finish(self) -> None:
        for items in self._batches.drain(frame.FRAME_BYTES):
            self._build(items)

    def _build(self, items: Sequence[frame.Item]) -> None:
        data = frame.build(items, self._key_id, self._compressor)
        self._write(data, [(oid, kind, len(content)) for oid, kind, content in items])

    def _write(self, data: bytes, rows: Sequence[tuple[Oid, int, int]]) -> None:
        self._file.write(data)
        start = 0
        for oid, kind, length in rows:
            self.entries.append((oid, 0, self.size, start, length, kind))
            start += length
        self.size += len(data)
