"""Groups objects into frames by size and kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ortet.objects import frame
from ortet.objects.base import Kind

_LARGE_FILE_BLOCK_BYTES = 128 * 1024


class FrameBatch:
    """The objects of one future frame.

    An object of at least the usual frame size gets its own frame: two of them might exceed MAX_RAW.
    """

    def __init__(self) -> None:
        self.items: list[frame.Item] = []
        self.bytes = 0

    def add(self, item: frame.Item) -> list[frame.Item] | None:
        """Add an object. Return the objects of a full frame, to be written now, or None."""
        size = len(item[2])
        if size >= frame.FRAME_BYTES:
            return [item]
        self.items.append(item)
        self.bytes += size
        if self.bytes >= frame.FRAME_BYTES or len(self.items) >= frame.FRAME_OBJECTS:
            return self.drain()
        return None

    def drain(self) -> list[frame.Item]:
        """Remove and return all objects."""
        items, self.items, self.bytes = self.items, [], 0
        return items


class FrameBatches:
    """Three batches: small file contents, blocks of large files, and other objects.

    Log, diff and merge read only the other objects. Small files are similar to their neighbours and
    compress best together.
    """

    def __init__(self) -> None:
        self.blobs = FrameBatch()
        self.blocks = FrameBatch()
        self.non_blobs = FrameBatch()

    def add(self, item: frame.Item) -> list[frame.Item] | None:
        """Add an object to its batch. Return the objects of a full frame, or None."""
        if item[1] != Kind.BLOB:
            return self.non_blobs.add(item)
        return (self.blocks if len(item[2]) >= _LARGE_FILE_BLOCK_BYTES else self.blobs).add(item)

    def drain(self, merge_below_bytes: int = 0) -> list[list[frame.Item]]:
        """Remove and return all objects by batch, in one list if below `merge_below_bytes`."""
        one = self.blobs.bytes + self.blocks.bytes + self.non_blobs.bytes < merge_below_bytes
        blobs, blocks, rest = self.blobs.drain(), self.blocks.drain(), self.non_blobs.drain()
        groups = [blobs + blocks + rest] if one else [rest, blobs, blocks]
        return [group for group in groups if group]


def split_into_frames(items: Sequence[frame.Item]) -> Iterator[Sequence[frame.Item]]:
    """Split objects that were left by failed writes into pieces that fit a frame."""
    batch = FrameBatch()
    for item in items:
        full = batch.add(item)
        if full is not None:
            yield full
    if batch.items:
        yield batch.items
