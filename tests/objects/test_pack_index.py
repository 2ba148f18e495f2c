"""The index finds what is there, nothing else, and knows when it is damaged."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ortet.errors import Corrupt
from ortet.ids import Oid
from ortet.objects.pack_index import IndexEntry, PackIndex, encode_index, open_index, write_index

PACKS = [("a", 7), ("b", 8)]


def entries(count: int, seed: int = 1) -> list[IndexEntry]:
    dice = random.Random(seed)
    return [
        (
            Oid(dice.randbytes(32)),
            dice.randrange(2),
            dice.randrange(1 << 40),
            dice.randrange(1 << 24),
            dice.randrange(1 << 24),
            dice.randrange(1, 8),
        )
        for _ in range(count)
    ]


def made(path: Path, listed: list[IndexEntry]) -> PackIndex:
    write_index(path, encode_index(PACKS, listed))
    return open_index(path)


@pytest.mark.parametrize("count", [0, 1, 255, 20_000, 60_000])
def test_the_index_finds_exactly_its_entries(tmp_path: Path, count: int) -> None:
    listed = entries(count)
    index = made(tmp_path / "a.idx", listed)
    assert index.count == count
    for oid, *place in listed[:2000]:
        assert index.find(oid) == tuple(place)
    for oid, *_ in entries(2000, seed=2):
        assert index.find(oid) is None
    assert sorted(index) == sorted(listed)


def test_oids_that_differ_only_in_the_last_bit_are_told_apart(tmp_path: Path) -> None:
    listed: list[IndexEntry] = [
        (Oid(bytes(31) + bytes([n])), 1, n, 0, 1, 1) for n in range(0, 256, 2)
    ]
    index = made(tmp_path / "a.idx", listed)
    for number in range(256):
        found = index.find(Oid(bytes(31) + bytes([number])))
        assert found == (None if number % 2 else (1, number, 0, 1, 1))


def test_an_oid_across_two_entries_is_not_found(tmp_path: Path) -> None:
    first, second = Oid(b"\1" * 16 + b"\2" * 16), Oid(b"\1" * 17 + b"\3" * 15)
    index = made(tmp_path / "a.idx", [(first, 0, 1, 2, 3, 1), (second, 0, 4, 5, 6, 1)])
    low, high = sorted((first, second))
    assert index.find(Oid(low[1:] + high[:1])) is None
    assert index.find(Oid(low[16:] + high[:16])) is None


def test_an_object_in_several_packs_is_found_in_each(tmp_path: Path) -> None:
    oid = Oid(b"\7" * 32)
    places = [(pack, at, 0, 1, 1) for pack in (0, 1) for at in range(100)]
    listed: list[IndexEntry] = [(oid, *place) for place in reversed(places)]
    index = made(tmp_path / "a.idx", [*listed, *entries(500)])
    assert index.find(oid) == (0, 0, 0, 1, 1)
    assert sorted(index.find_all(oid)) == places
    assert list(index.find_all(Oid(b"\7" * 31 + b"\6"))) == []


def test_prefix_returns_all_oids_in_the_range(tmp_path: Path) -> None:
    listed = entries(5000)
    index = made(tmp_path / "a.idx", listed)
    for low, high in [(b"\x12", b"\x12"), (b"\x12\x30", b"\x12\x3f"), (b"", b"")]:
        bounds = low.ljust(32, b"\0"), high.ljust(32, b"\xff")
        want = sorted((e[0], e[5]) for e in listed if bounds[0] <= e[0] <= bounds[1])
        assert list(index.iter_range(*bounds)) == want


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    listed = entries(400)
    path = tmp_path / "a.idx"
    write_index(path, encode_index(PACKS, listed))
    whole = path.read_bytes()
    dice = random.Random(3)
    # the whole header, and a sample of the entries
    places = [*range(0, 3120, 7), *(dice.randrange(3120, len(whole)) for _ in range(200))]
    for at in places:
        broken = bytearray(whole)
        broken[at] ^= 1 << dice.randrange(8)
        path.write_bytes(broken)
        try:
            found = sorted(open_index(path))
        except Corrupt as error:
            assert error.kind == "bad_index"
        else:  # bytes that pad the header mean nothing
            assert found == sorted(listed)
            assert 5 <= at < 8


@pytest.mark.parametrize("size", [0, 3, 3000, -1])
def test_a_cut_index_is_noticed(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.idx"
    write_index(path, encode_index(PACKS, entries(50)))
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(Corrupt):
        open_index(path)


def test_the_index_lists_its_packs(tmp_path: Path) -> None:
    assert made(tmp_path / "a.idx", entries(50)).packs == PACKS


def test_write_index_leaves_no_temporary_file(tmp_path: Path) -> None:
    write_index(tmp_path / "a.idx", encode_index(PACKS, entries(50)))
    assert [path.name for path in tmp_path.iterdir()] == ["a.idx"]
