"""Objects on their way into frames: how many go into one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ortet.objects import frame
from ortet.objects.base import Kind

_LARGE_FILE_BLOCK_BYTES = 128 * 1024


class FrameBatch:
    """Objects that will be one frame. One larger than a frame's usual size goes alone, or two of
    them could pass what a frame may hold."""

    def __init__(self) -> None:
        self.items: list[frame.Item] = []
        self.bytes = 0

    def add(self, item: frame.Item) -> list[frame.Item] | None:
        """Take an object; what is full now, to be written, is given back."""
        size = len(item[2])
        if size >= frame.FRAME_BYTES:
            return [item]
        self.items.append(item)
        self.bytes += size
        if self.bytes >= frame.FRAME_BYTES or len(self.items) >= frame.FRAME_OBJECTS:
            return self.drain()
        return None

    def drain(self) -> list[frame.Item]:
        """What is in it; it is empty then."""
        items, self.items, self.bytes = self.items, [], 0
        return items


class FrameBatches:
    """File contents and the rest apart: log, diff and merge read the rest only. And blocks of large
    files apart from small files, which are like their neighbours and shrink best beside them."""

    def __init__(self) -> None:
        self.blobs = FrameBatch()
        self.blocks = FrameBatch()
        self.non_blobs = FrameBatch()

    def add(self, item: frame.Item) -> list[frame.Item] | None:
        if item[1] != Kind.BLOB:
            return self.non_blobs.add(item)
        return (self.blocks if len(item[2]) >= _LARGE_FILE_BLOCK_BYTES else self.blobs).add(item)

    def drain(self, merge_below_bytes: int = 0) -> list[list[frame.Item]]:
        """What is in them, as one when that is less than `small` bytes; they are empty then."""
        one = self.blobs.bytes + self.blocks.bytes + self.non_blobs.bytes < merge_below_bytes
        blobs, blocks, rest = self.blobs.drain(), self.blocks.drain(), self.non_blobs.drain()
        groups = [blobs + blocks + rest] if one else [rest, blobs, blocks]
        return [group for group in groups if group]


def split_into_frames(items: Sequence[frame.Item]) -> Iterator[Sequence[frame.Item]]:
    """Pieces that each fit a frame, for what piled up after a failure."""
    batch = FrameBatch()
    for item in items:
        full = batch.add(item)
        if full is not None:
            yield full
    if batch.items:
        yield batch.items
