"""A tail: what its writer appends, and what others see of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ortet._util.codec import Compressor, Hasher
from ortet.backends.local.bucket import FileBucket
from ortet.errors import Unavailable
from ortet.objects import frame
from ortet.objects.pack_index import open_index
from ortet.objects.recovery import adopt_tail, create_tail, follow_tail
from ortet.objects.seal import seal
from ortet.objects.tail import Tail, pack_key

HASHER = Hasher()
KEY = HASHER.key_id


def items(*contents: bytes) -> list[frame.Item]:
    return [(HASHER.oid(data), 1, data) for data in contents]


def append(tail: Tail, *contents: bytes, roomy: bool = False) -> None:
    listed = items(*contents)
    tail.append(frame.build(listed, KEY, Compressor()), listed, preallocate=roomy)


def new(path: Path) -> Tail:
    tail = create_tail(path, key_id=KEY)
    assert tail is not None
    return tail


def following(path: Path) -> Tail:
    tail = follow_tail(path, key_id=KEY)
    assert tail is not None
    return tail


def read(tail: Tail, data: bytes) -> bytes:
    spot = tail.find(HASHER.oid(data))
    assert spot is not None
    return tail.load(spot[1])[spot[2] : spot[2] + spot[3]]


def test_another_handle_sees_each_frame(tmp_path: Path) -> None:
    ours = new(tmp_path / "a.tail")
    theirs = following(tmp_path / "a.tail")
    for turn in range(5):
        texts = [b"%d %d" % (turn, n) * 50 for n in range(turn + 1)]
        append(ours, *texts)
        assert theirs.find(HASHER.oid(texts[0])) is None
        theirs.advance()
        for text in texts:
            assert read(ours, text) == read(theirs, text) == text
    assert len(theirs) == len(ours) == 15


def test_a_tail_preallocates_space_and_releases_it(tmp_path: Path) -> None:
    path = tmp_path / "a.tail"
    ours = new(path)
    theirs = following(path)
    for turn in range(40):
        append(ours, b"turn %d" % turn, roomy=True)
        ours.sync()
    assert path.stat().st_size > ours.end
    theirs.advance()
    assert len(theirs) == 40
    append(ours, b"into the room", roomy=True)
    assert theirs.has_changed()
    theirs.advance()
    assert read(theirs, b"into the room") == b"into the room"
    ours.release()
    assert path.stat().st_size == ours.end


def test_an_incomplete_frame_is_not_seen_by_a_follower(tmp_path: Path) -> None:
    path = tmp_path / "a.tail"
    ours = new(path)
    append(ours, b"whole")
    theirs = following(path)
    next_ = frame.build(items(b"coming " * 100, b"two"), KEY, Compressor())
    for room in (0, 5000):  # at the end of the file, and inside zeros kept for it
        for cut in range(0, len(next_), 9):
            with open(path, "r+b") as file:
                file.truncate(ours.end)
                file.seek(ours.end)
                file.write(next_[:cut] + bytes(room))
            theirs.advance()
            assert (len(theirs), theirs.end) == (1, ours.end)
    with open(path, "r+b") as file:
        file.seek(ours.end)
        file.write(next_)
    theirs.advance()
    assert len(theirs) == 3


def test_a_follower_notices_that_the_end_was_cut_off(tmp_path: Path) -> None:
    ours = new(tmp_path / "a.tail")
    append(ours, b"first")
    ours.sync()
    append(ours, b"not synced " * 20)
    theirs = following(tmp_path / "a.tail")
    os.truncate(tmp_path / "a.tail", ours.synced)
    ours.end = ours.synced
    append(ours, b"something else, longer than what was there before " * 9)
    append(ours, b"and more")
    theirs.advance()
    assert theirs.find(HASHER.oid(b"not synced " * 20)) is None
    assert read(theirs, b"and more") == b"and more"
    assert len(theirs) == 3


def test_a_failed_write_leaves_the_tail_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = new(tmp_path / "a.tail")
    append(ours, b"good")
    end = ours.end
    real = os.pwrite

    def full(fd: int, data: bytes, offset: int) -> int:
        if offset > end:
            raise OSError(errno.ENOSPC, "full")
        return real(fd, data[:30], offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(Unavailable) as caught:
        append(ours, b"does not fit")
    assert caught.value.kind == "disk_full"
    monkeypatch.undo()
    assert (tmp_path / "a.tail").stat().st_size == ours.end == end
    append(ours, b"fits now")
    assert len(following(tmp_path / "a.tail")) == 2


def test_a_failed_sync_stays_failed_until_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = new(tmp_path / "a.tail")
    append(ours, b"good")
    ours.sync()
    append(ours, b"lost?")

    def fails(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fails)
    with pytest.raises(Unavailable):
        ours.sync()
    monkeypatch.undo()
    # The kernel would now say that all is well; the pages may be gone.
    with pytest.raises(Unavailable) as caught:
        ours.sync()
    assert caught.value.kind == "storage_error"
    written: list[int] = []
    real = os.pwrite

    def watched(fd: int, data: bytes, offset: int) -> int:
        written.append(offset)
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", watched)
    good = ours.synced
    ours.rewrite_unsynced()
    assert written == [good]
    ours.sync()
    assert ours.end == ours.synced == (tmp_path / "a.tail").stat().st_size
    assert read(ours, b"lost?") == b"lost?"


def test_frames_damaged_after_the_last_sync_are_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "a.tail"
    ours = new(path)
    for text in (b"synced", b"kept", b"lost", b"behind"):
        append(ours, text)
        if text == b"synced":
            ours.sync()
    spot = ours.find(HASHER.oid(b"lost"))
    assert spot is not None
    with open(path, "r+b") as file:
        file.seek(spot[1] + 60)
        file.write(b"\0" * 20)
    ours.rewrite_unsynced()
    assert ours.end == spot[1] == path.stat().st_size
    assert ours.find(HASHER.oid(b"lost")) is ours.find(HASHER.oid(b"behind")) is None
    assert read(ours, b"kept") == b"kept"


def test_a_sealed_tail_is_a_pack(tmp_path: Path) -> None:
    bucket = FileBucket(tmp_path / "bucket")
    path = tmp_path / "a.tail"
    ours = new(path)
    for turn in range(30):
        append(ours, b"turn %d" % turn, roomy=True)
        ours.sync()
    size = seal(ours, tmp_path / "a.idx", bucket)
    assert not path.exists()
    assert bucket.size(pack_key("a")) == size
    index = open_index(tmp_path / "a.idx")
    assert (index.count, index.packs) == (30, [("a", size)])
    assert read(ours, b"turn 7") == b"turn 7"


def test_an_empty_tail_is_not_left_behind(tmp_path: Path) -> None:
    new(tmp_path / "a.tail").release()
    assert not (tmp_path / "a.tail").exists()


def test_a_tail_is_full_by_bytes_frames_or_objects(tmp_path: Path) -> None:
    ours = new(tmp_path / "a.tail")
    append(ours, b"x")
    assert not ours.is_full(1 << 20)
    assert ours.is_full(10)
    ours.frames = 2048
    assert ours.is_full(1 << 20)


def test_a_tail_is_free_only_after_its_writer_released_it(tmp_path: Path) -> None:
    ours = new(tmp_path / "a.tail")
    append(ours, b"x")
    theirs = following(tmp_path / "a.tail")
    assert not theirs.is_unlocked()
    ours.release()
    assert theirs.is_unlocked()
    assert adopt_tail(tmp_path / "a.tail", FileBucket(tmp_path / "b"), key_id=KEY) is not None
