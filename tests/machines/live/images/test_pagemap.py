"""Addresses of pages are read as CRIU writes them, and files are cut by them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.machines.images import MAGIC, PAGE, pagemap, random_memory, write_images

from ortet.errors import Invalid
from ortet.machines.live.images.pagemap import (
    PageAddresses,
    PageRun,
    cut_leaves,
    parse_pagemap,
    read_page_layouts,
)


def _runs(steps: list[tuple[int, int]]) -> list[PageRun]:
    at, runs = 0, []
    for gap, count in steps:
        runs.append((at + gap, count))
        at += gap + count
    return runs


RUNS = st.lists(st.tuples(st.integers(1, 80), st.integers(1, 200)), max_size=30).map(_runs)


def test_only_pages_that_are_in_the_file_count() -> None:
    entries = [
        {1: 0x1000, 2: 0, 4: 4, 5: 3},  # as CRIU 4.2 writes it
        {1: 0x8000, 2: 2, 4: 4},  # as before 4.1
        {1: 0x20000, 2: 5, 4: 1},  # in the parent image
        {1: 0x30000, 2: 5, 4: 2},  # lazy: a page server has it
        {1: 0x40000, 2: 1, 4: 6},  # lazy and present
        {1: 0x50000, 2: 7, 3: 1},  # in the parent, before there were flags
        {1: 0x60000, 2: 1},  # before there were flags
    ]
    assert parse_pagemap(pagemap(7, entries), PAGE) == (7, [(1, 3), (8, 2), (0x40, 1), (0x60, 1)])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x" * 40,
        MAGIC,
        MAGIC + b"\x05",
        MAGIC + b"\x05\0\0\0\x08",
        MAGIC + b"\x02\0\0\0\x08\x80",
        MAGIC + b"\x02\0\0\0\x0a\x01",
        MAGIC + b"\x01\0\0\0\x08",
    ],
)
def test_a_malformed_pagemap_is_refused(data: bytes) -> None:
    with pytest.raises(Invalid) as caught:
        parse_pagemap(data, PAGE)
    assert caught.value.kind == "bad_images"


def test_each_pages_file_is_assigned_to_the_pagemap_of_its_process(tmp_path: Path) -> None:
    images = write_images(
        tmp_path / "d", {7: random_memory(0x10000, 3), 9: random_memory(0x40000, 2)}
    )
    (images / "pages-5.img").write_bytes(bytes(2 * PAGE))
    (images / "pages-6.img").write_bytes(b"odd")
    sizes = {path.name: path.stat().st_size for path in images.iterdir()}
    laid = read_page_layouts(lambda name: (images / name).read_bytes(), sizes, PAGE)
    assert {name: (one.key, one.runs) for name, one in laid.items()} == {
        "pages-1.img": ("pagemap-7.img", [(0x10, 3)]),
        "pages-2.img": ("pagemap-9.img", [(0x40, 2)]),
        "pages-5.img": ("pages-5.img", [(0, 2)]),
    }
    (images / "pages-1.img").write_bytes(bytes(PAGE))
    sizes["pages-1.img"] = PAGE
    assert read_page_layouts(lambda name: (images / name).read_bytes(), sizes, PAGE)[
        "pages-1.img"
    ].runs == [(0, 1)]


@given(RUNS)
def test_cut_blocks_cover_the_file_without_gaps(runs: list[PageRun]) -> None:
    blocks = [block for leaf in cut_leaves(runs, PAGE) for block in leaf]
    at = 0
    for start, count in blocks:
        assert start == at
        assert 0 < count <= 32
        at += count
    assert at == sum(count for _, count in runs)


def test_added_pages_do_not_move_later_blocks() -> None:
    def addresses(runs: list[PageRun]) -> set[tuple[PageRun, ...]]:
        places = PageAddresses(runs)
        leaves = cut_leaves(runs, PAGE)
        return {tuple(places.addresses(*block)) for leaf in leaves for block in leaf}

    before = [(100, 3), (4096, 8192), (20000, 5)]
    after = [(100, 3), (200, 7), (4000, 8288), (20000, 5)]
    assert len(addresses(before) - addresses(after)) <= 2
    assert len(cut_leaves([(0, 1 << 20)], PAGE)) == 512


@given(RUNS, RUNS, st.data())
def test_places_finds_the_file_offset_of_every_page_and_back(
    old: list[PageRun], new: list[PageRun], data: st.DataObject
) -> None:
    plain: dict[int, int] = {}
    for address, count in old:
        for number in range(count):
            plain[address + number] = len(plain)
    places = PageAddresses(old)
    for address, count in new:
        expected = [plain.get(address + number) for number in range(count)]
        found: list[int | None] = []
        for at, length in places.find_pages(address, count):
            found += [None] * length if at is None else list(range(at, at + length))
        assert found == expected
    if plain:
        at = data.draw(st.integers(0, len(plain) - 1))
        count = data.draw(st.integers(1, len(plain) - at))
        got = [
            address + number
            for address, length in places.addresses(at, count)
            for number in range(length)
        ]
        assert got == list(plain)[at : at + count]
