"""Adopting tails: nothing acknowledged is lost, nobody's tail is taken from them."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from ortet._util.codec import Compressor, Hasher
from ortet.backends.local.bucket import FileBucket
from ortet.backends.local.memory import MemoryBucket
from ortet.objects import frame
from ortet.objects.recovery import adopt_tail, create_tail, follow_tail
from ortet.objects.tail import Tail, pack_key

SOAK = int(os.environ.get("ORTET_SOAK", "1"))
HASHER = Hasher()
KEY = HASHER.key_id


def built(*contents: bytes) -> bytes:
    listed = [(HASHER.oid(data), 1, data) for data in contents]
    return frame.build(listed, KEY, Compressor())


def adopted(path: Path) -> Tail:
    tail = adopt_tail(path, MemoryBucket(), key_id=KEY)
    assert tail is not None
    return tail


FRAMES = [built(b"frame %d " % n * (n * 9 + 1), b"small %d" % n) for n in range(6)]
ENDS = [sum(map(len, FRAMES[: n + 1])) for n in range(6)]


@pytest.mark.parametrize("room", [0, 300])
def test_cut_at_any_byte_the_whole_frames_stay(tmp_path: Path, room: int) -> None:
    whole = b"".join(FRAMES)
    path = tmp_path / "a.tail"
    edges = {end + n for end in (0, *ENDS) for n in range(-3, 60)}
    places = sorted(p for p in edges | set(range(0, len(whole), 11)) if 0 <= p <= len(whole))
    for size in places:
        path.write_bytes(whole[:size] + bytes(room))
        tail = adopted(path)
        good = max((end for end in (0, *ENDS) if end <= size), default=0)
        assert tail.end == path.stat().st_size == good
        assert len(tail) == 2 * sum(end <= size for end in ENDS)
        tail.release()
        for leftover in tmp_path.iterdir():
            leftover.unlink()


@pytest.mark.soak
def test_flipped_bits_cost_their_frame_only(tmp_path: Path) -> None:
    whole = b"".join(FRAMES)
    dice = random.Random(11)
    for _ in range(60 * SOAK):
        at = dice.randrange(len(whole))
        hit = sum(end <= at for end in ENDS)
        broken = bytearray(whole)
        broken[at] ^= 1 << dice.randrange(8)
        path = tmp_path / "a.tail"
        path.write_bytes(broken)
        tail = adopt_tail(path, MemoryBucket(), key_id=KEY)
        if tail is None:  # the version byte: a newer ortet may have written it
            assert at - (0, *ENDS)[hit] == 4
            assert path.read_bytes() == broken
        else:
            assert tail.end == (0, *ENDS)[hit]
            saved = [p for p in tmp_path.glob("*.tail") if p != path]
            rest = b"".join(FRAMES[hit + 1 :])
            assert [p.read_bytes() for p in saved] == ([rest] if rest else [])
            tail.release()
        for leftover in tmp_path.iterdir():
            leftover.unlink()


def test_zeros_after_a_power_cut_are_cut_off_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ortet")
    path = tmp_path / "a.tail"
    path.write_bytes(FRAMES[0] + bytes(len(FRAMES[1])) + FRAMES[2])
    tail = adopted(path)
    assert tail.end == len(FRAMES[0])
    saved = [p for p in tmp_path.glob("*.tail") if p != path]
    assert [p.read_bytes() for p in saved] == [FRAMES[2]]
    cut = len(FRAMES[1]) + len(FRAMES[2])
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "WARNING",
            f"tail a.tail is damaged at byte {tail.end}: {len(FRAMES[2])} bytes after it are saved "
            "in another tail",
        ),
        ("INFO", f"cut {cut} bytes of an unfinished write from tail a.tail"),
    ]


def test_adopting_the_same_damaged_tail_twice_leaves_one_tail(tmp_path: Path) -> None:
    for _ in range(2):  # a crash after saving, before the cut
        (tmp_path / "a.tail").write_bytes(b"junk" + FRAMES[2])
        adopted(tmp_path / "a.tail").release()
        assert len(list(tmp_path.glob("*.tail"))) == 1


def test_a_held_tail_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "a.tail"
    ours = create_tail(path, key_id=KEY)
    assert ours is not None
    path.write_bytes(FRAMES[0] + b"half a fra")
    assert adopt_tail(path, MemoryBucket(), key_id=KEY) is None
    assert path.read_bytes() == FRAMES[0] + b"half a fra"
    ours.release()


def test_a_tail_with_newer_frames_is_not_touched(tmp_path: Path) -> None:
    newer = bytearray(FRAMES[1])
    newer[4] = 2
    path = tmp_path / "a.tail"
    path.write_bytes(FRAMES[0] + newer)
    assert adopt_tail(path, MemoryBucket(), key_id=KEY) is None
    assert path.read_bytes() == FRAMES[0] + newer
    seen = follow_tail(path, key_id=KEY)
    assert seen is not None
    assert len(seen) == 2


def test_a_tail_already_stored_as_a_pack_is_dropped(tmp_path: Path) -> None:
    bucket = FileBucket(tmp_path / "bucket")
    path = tmp_path / "a.tail"
    path.write_bytes(FRAMES[0])
    copy = tmp_path / "copy"
    os.link(path, copy)
    bucket.put_file(pack_key("a"), copy)
    assert adopt_tail(path, bucket, key_id=KEY) is None
    assert not path.exists()
    assert bucket.get(pack_key("a")) == FRAMES[0]


def test_a_tail_name_that_now_names_another_file_is_not_adopted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.tail"
    path.write_bytes(FRAMES[0])
    real = os.open

    def sealed_meanwhile(*args: object, **kwargs: object) -> int:
        fd = real(*args, **kwargs)  # type: ignore[arg-type]
        if path.exists():
            path.rename(tmp_path / "sealed.pack")
        return fd

    monkeypatch.setattr(os, "open", sealed_meanwhile)
    assert adopt_tail(path, MemoryBucket(), key_id=KEY) is None
    assert (tmp_path / "sealed.pack").read_bytes() == FRAMES[0]


def test_adopt_and_follow_of_a_missing_tail_return_none(tmp_path: Path) -> None:
    assert adopt_tail(tmp_path / "a.tail", MemoryBucket(), key_id=KEY) is None
    assert follow_tail(tmp_path / "a.tail", key_id=KEY) is None
