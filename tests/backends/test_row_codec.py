"""How bodies of events are written into rows: smaller where that pays, and always had back."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ortet._util.codec import ZSTD_MAGIC, Compressor
from ortet.backends.base import EventRow, Timeline
from ortet.backends.row_codec import CachingCompressor, compress_body, decompress_body
from ortet.backends.sqlite.catalog import SqliteCatalog
from ortet.errors import Corrupt

_LINE = "0" * 32


def _noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@pytest.mark.parametrize(
    "body",
    [b"", b"short", b"s" * 150, b"long " * 100, _noise(500), _noise(400) + b"x" * 20, ZSTD_MAGIC],
)
def test_every_packed_body_unpacks_to_the_same_bytes(body: bytes) -> None:
    for zstd in (Compressor(), CachingCompressor()):
        stored = compress_body(body, zstd)
        assert decompress_body(stored) == body
        assert decompress_body(stored, CachingCompressor()) == body
        assert (
            decompress_body(compress_body(body, CachingCompressor()), CachingCompressor()) == body
        )


def test_a_body_that_compresses_little_is_stored_raw() -> None:
    zstd = CachingCompressor()
    assert compress_body(b"said " * 30, zstd) == b"said " * 30
    body = _noise(400) + b"x" * 40
    assert len(zstd.compress(body)) < len(body)
    assert compress_body(body, zstd) == body
    assert len(compress_body(b"said " * 100, zstd)) < 100


def test_a_packer_remembers_only_the_last_bodies() -> None:
    zstd, bodies = CachingCompressor(10_000), [f"{number} ".encode() * 300 for number in range(200)]
    stored = [compress_body(body, zstd) for body in bodies]
    kept = {**zstd._old, **zstd._new}
    assert kept[stored[-1]] == bodies[-1]
    assert sum(len(less) + len(body) for less, body in kept.items()) <= 12_000
    assert [decompress_body(less, zstd) for less in stored] == bodies
    with pytest.raises(Corrupt):
        decompress_body(stored[-1][:-2], zstd)


def test_an_erased_body_is_removed_from_the_packer_cache(tmp_path: Path) -> None:
    catalog = SqliteCatalog(tmp_path / "c.db")
    catalog.move([], verb="open", timelines=[Timeline(_LINE)])
    bodies = [b"a secret " * 50, b"no secret " * 50]
    catalog.append(_LINE, [EventRow(n, b"head", b"salt", body) for n, body in enumerate(bodies, 1)])
    assert [row.body for row in catalog.events(_LINE)] == bodies
    catalog.erase_events(_LINE, [1])
    assert [row.body for row in catalog.events(_LINE)] == [b"", bodies[1]]
    assert bodies[0] not in [*catalog._zstd._old.values(), *catalog._zstd._new.values()]
    catalog.close()
