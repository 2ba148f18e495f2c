"""Many objects: each frame once, in pack order, whatever else happens."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from ortet.errors import NotFound
from ortet.objects.base import Kind
from ortet.objects.pack import Pack
from ortet.objects.store import PackedObjectStore

Open = Callable[..., PackedObjectStore]


def filled(open_store: Open) -> list[bytes]:
    store = open_store(seal_bytes=600_000)
    dice = random.Random(4)
    contents = [dice.randbytes(dice.randrange(1, 20_000)) for _ in range(300)]
    for number, data in enumerate(contents):
        store.put(Kind.BLOB, data)
        if number % 20 == 0:
            store.flush()
    store.close()
    return contents


def test_each_frame_is_read_once_in_order(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = filled(open_store)
    store = open_store()
    oids = [store.hasher.oid(data) for data in contents]
    loads: list[tuple[str, int]] = []
    real = Pack.load

    def watched(self: Pack, offset: int) -> bytes:
        loads.append((self.id, offset))
        return real(self, offset)

    monkeypatch.setattr(Pack, "load", watched)
    random.Random(1).shuffle(oids)
    found = list(store.get_many(oids))
    assert dict(found) == {store.hasher.oid(data): data for data in contents}
    assert len(loads) == len(set(loads)) > 5
    spots = {oid: store.pack_set.find(oid) for oid, _ in found}
    order = [(spot[0].id, *spot[1:3]) for spot in spots.values() if spot is not None]
    assert order == sorted(order)


def test_a_reader_may_stop_early(open_store: Open) -> None:
    contents = filled(open_store)
    store = open_store()
    stream = store.get_many(store.hasher.oid(data) for data in contents)
    assert len([next(stream) for _ in range(3)]) == 3
    stream.close()  # type: ignore[attr-defined]
    assert store.get(store.hasher.oid(contents[0])) == contents[0]


def test_get_many_finds_objects_again_after_a_sweep_replaced_their_packs(
    open_store: Open, root: Path
) -> None:
    contents = filled(open_store)
    store = open_store()
    stream = store.get_many([store.hasher.oid(data) for data in contents])
    first = next(stream)
    # What a sweep does: the same objects in another pack, the old ones gone.
    other = open_store()
    tail = other.pack_set.new_tail()
    for data in contents:
        oid = other.hasher.oid(data)
        built = other.writer._build_compressed([(oid, 1, data)])
        tail.append(built, [(oid, 1, data)])
    old = list((root / "bucket/packs").iterdir())
    other.pack_set.seal(tail)
    for pack in old:
        pack.unlink()
    assert dict([first, *stream]) == {store.hasher.oid(data): data for data in contents}


def test_get_many_with_a_missing_object_raises_not_found(open_store: Open) -> None:
    contents = filled(open_store)
    store = open_store()
    oids = [store.hasher.oid(data) for data in contents]
    with pytest.raises(NotFound):
        list(store.get_many([*oids, store.hasher.oid(b"never put")]))
