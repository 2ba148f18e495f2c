"""Packs of a bucket that is elsewhere: small ones are fetched whole, large ones frame by frame."""

from __future__ import annotations

import bisect
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ortet.backends.base import Bucket
from ortet.errors import Corrupt, NotFound
from ortet.ids import Oid
from ortet.objects import frame
from ortet.objects.absent import AT
from ortet.objects.pack import Pack
from ortet.objects.pack_index import Index, write_index
from ortet.objects.remote.pack_cache import Kept
from ortet.objects.source import File, Spot
from ortet.objects.tail import SUFFIX as TAIL
from ortet.objects.tail import pack_key

WHOLE = 1 << 20
"""Bytes up to which one question for all costs less than several for parts."""


class RemotePack(Pack):
    """One sealed pack. What this host keeps of it is checked when it is read, and fetched again
    when it is damaged."""

    def __init__(
        self, bucket: Bucket, id_: str, *, size: int, index_dir: Path, key_id: bytes, kept: Kept
    ) -> None:
        super().__init__(bucket, id_, size=size, index_dir=index_dir, key_id=key_id)
        self._kept = kept
        self._offsets: list[int] | None = None

    def read(self, offset: int, length: int) -> bytes:
        file = self._whole()
        if file is None:
            return self._bucket.get(pack_key(self.id), offset, length)
        return os.pread(file.fd, length, offset)

    def load(self, offset: int) -> bytes:
        file = self._whole()
        if file is not None:
            with suppress(Corrupt):
                return super().load(offset)
            self.distrust()
        name = f"{self.id}.{offset}.frame"
        data = self._kept.get(name)
        if data is not None:
            with suppress(Corrupt):
                return _decoded(data, offset)
        data = self._bucket.get(pack_key(self.id), offset, self._after(offset) - offset)
        found = _decoded(data, offset)
        self._kept.put(name, data)
        return found

    def distrust(self) -> None:
        """Forget the bytes that this host has of it."""
        self._file = None
        self._kept.drop(f"{self.id}.")

    def rebuild(self) -> Index:
        """The index that lies beside the pack, if one does, or made from the pack as it is there,
        not here."""
        self.distrust()
        if self.end > WHOLE:
            with suppress(NotFound, Corrupt):
                data = self._bucket.get(f"packs/{self.id}.idx")
                if Index(data).packs == [(self.id, self.end)]:
                    return self._keep_index(data)
        return super().rebuild()

    def is_here(self) -> bool:
        """Whether reading all of it asks nobody."""
        return self._kept.has(f"{self.id}.pack") and self.index_path.exists()

    def take(self, data: bytes) -> None:
        """All of it, as it is there."""
        if len(data) == self.end:
            self._kept.put(f"{self.id}.pack", data)
            super().rebuild()

    def _keep_index(self, data: bytes) -> Index:
        with suppress(OSError):
            write_index(self.index_path, data, sync=False)
        return Index(data)

    def _whole(self) -> File | None:
        """All of it, if it is here or small enough to be fetched so."""
        if self._file is None:
            name = f"{self.id}.pack"
            fd = self._kept.open(name)
            if fd is None and self.end <= WHOLE:
                self._kept.put(name, self._bucket.get(pack_key(self.id)))
                fd = self._kept.open(name)
            if fd is not None:
                file = File(fd)
                if os.fstat(fd).st_size != self.end:
                    self._kept.drop(name)
                    return None
                if self.end <= WHOLE:  # of which there are thousands, and descriptors are not
                    return file
                self._file = file
        return self._file

    def _after(self, offset: int) -> int:
        """Where the frame that begins there ends."""
        if self._offsets is None:
            self._offsets = sorted({place[1] for _, *place in self.index()})
        at = bisect.bisect_right(self._offsets, offset)
        return self._offsets[at] if at < len(self._offsets) else self.end


class RemoteTail(RemotePack):
    """What a writer at the server has not sealed yet: durable, and longer at each look."""

    sealed = False

    def __init__(self, bucket: Bucket, id_: str, *, key_id: bytes, kept: Kept) -> None:
        super().__init__(bucket, id_, size=0, index_dir=Path(), key_id=key_id, kept=kept)
        self._life = 0
        self._begin()

    def _begin(self) -> None:
        """With nothing known; what is cached of frames that were seen before is another's."""
        self._spots: dict[Oid, Spot] = {}
        self._leads: list[tuple[int, int]] = []  # where frames are, and their sizes
        self._head = b""
        self._life += 1
        self.key = f"{self.id}{TAIL}.{self._life}"
        self.end = 0

    def advance(self, size: int) -> None:
        """Take in what was appended; all of it anew when it is not the one that was seen before."""
        if self._leads and self.read(self._leads[-1][0], frame.HEADER_BYTES) != self._head:
            self._begin()
        for lead in frame.scan(self.read, self.end, size):
            start = 0
            if lead.header.key_id == self._key_id:
                for oid, kind, length in lead.rows():
                    self._spots[oid] = (self, lead.offset, start, length, kind)
                    start += length
            self._leads.append((lead.offset, lead.header.size))
            self._head = lead.head
            self.end = lead.offset + lead.header.size

    def read(self, offset: int, length: int) -> bytes:
        return self._bucket.get(f"packs/{self.id}{TAIL}", offset, length)

    def load(self, offset: int) -> bytes:
        at = bisect.bisect_left(self._leads, (offset, 0))
        size = self._leads[at][1] if at < len(self._leads) else 0
        return _decoded(self.read(offset, size), offset)

    def rest(self) -> None: ...

    def distrust(self) -> None: ...

    def __len__(self) -> int:
        return len(self._spots)

    def find(self, oid: Oid) -> Spot | None:
        return self._spots.get(oid)

    def words(self, slot: int) -> list[int]:
        return [
            int.from_bytes(oid[AT : AT + 4], sys.byteorder)
            for oid in list(self._spots)
            if oid[0] == slot
        ]

    def prefix(self, low: bytes, high: bytes) -> Iterator[tuple[Oid, int]]:
        return ((oid, spot[4]) for oid, spot in list(self._spots.items()) if low <= oid <= high)

    def spots(self) -> Iterator[tuple[Oid, Spot]]:
        return iter(list(self._spots.items()))


def _decoded(data: bytes, offset: int) -> bytes:
    """The objects of the frame that these bytes are."""
    header = frame.parse_header(data, offset=offset)
    frame.read_table(data, 0, header, offset=offset)
    payload = memoryview(data)[header.lead : header.size]
    return frame.unpack(header, payload, offset=offset)
