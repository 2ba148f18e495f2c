"""A host whose cache disk is full, for real: what it reads goes past the cache, what it commits
goes to the bucket, and nothing is damaged."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.fixtures.stores import OpenAs

from ortet.config.environment import open_hub
from ortet.errors import OrtetError, Refused, Unavailable
from ortet.hub.hub import Hub
from ortet.ids import from_hex
from ortet.objects.group import MERGE_MIN_TABLES

Open = Callable[..., Hub]


@pytest.fixture
def small(small_disk: Path, url: str) -> Iterator[Open]:
    """Hubs of a host that keeps what it reads, and its queue, on a disk of 4 MiB."""
    hubs: list[Hub] = []

    def opened(reserve: int | None = None) -> Hub:
        environ = {**os.environ, "XDG_CACHE_HOME": str(small_disk)}
        hub = open_hub(url, environ=environ)
        if reserve is not None:
            (hub.root / "config.toml").write_text(f"reserve = {reserve}\n")
            hub.close()
            hub = open_hub(url, environ=environ)
        hubs.append(hub)
        return hub

    yield opened
    for hub in hubs:
        hub.close()


def fill(disk: Path) -> Path:
    """To the last byte."""
    filler = disk / "filler"
    with open(filler, "ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)
    return filler


def refused(commit: Callable[[], object]) -> OrtetError:
    with pytest.raises((Refused, Unavailable)) as caught:
        commit()
    assert 'durable="remote"' in caught.value.message
    return caught.value


def test_full_cache_disk_allows_reads_and_remote_commits(
    host: OpenAs, small: Open, small_disk: Path, tmp_path: Path
) -> None:
    other, hub = host("other"), small(reserve=0)
    data, work = os.urandom(300_000), tmp_path / "work"
    work.mkdir()
    (work / "file").write_bytes(data)
    with other.workspace(work, name="theirs") as workspace:
        theirs = workspace.commit("read past the cache")
    with hub.session("s") as s:
        s.say("user", "before")
        s.commit("before")
        filler = fill(small_disk)
        hub.restore(theirs.oid, to=tmp_path / "out")
        assert (tmp_path / "out" / "file").read_bytes() == data
        for number in range(3):
            s.say("user", f"during {number}")
            s.artifact("large", data=os.urandom(3_000_000))
            made = s.commit("during", durable="remote")
            assert other.history.info(from_hex(made.oid)).message == "during"
        s.say("user", "here")
        assert refused(lambda: s.commit("only here", durable="local")).kind == "disk_full"
        assert not hub.objects.queued().objects
        filler.unlink()
        last = s.commit("room again", durable="local")
        s.commit(durable="remote")
    said = ["before", *(f"during {number}" for number in range(3)), "here"]
    assert [m.content for m in other.get("s").messages()] == said
    assert other.get("s").artifacts()
    assert other.history.info(from_hex(last.oid)).message == "room again"
    for one in (other, hub, small()):
        assert not one.verify().problems


def test_local_commit_that_would_use_the_disk_reserve_is_refused(host: OpenAs, small: Open) -> None:
    """Which is more than all of this disk."""
    other, hub = host("other"), small()
    with hub.session("s") as s:
        s.say("user", "there")
        s.commit("there")
        s.say("user", "here")
        assert refused(lambda: s.commit("here", durable="local")).kind == "disk_reserve"
        s.commit("there, too")
    assert [m.content for m in other.get("s").messages()] == ["there", "here"]
    assert not other.verify().problems


def test_host_with_a_full_cache_disk_can_open_read_and_commit(
    host: OpenAs, small: Open, small_disk: Path
) -> None:
    """Where it was used before: what it needs to begin with is there."""
    other = host("other")
    small(reserve=0).close()
    with other.session("s") as s:
        s.say("user", "theirs")
        s.commit("theirs")
    fill(small_disk)
    hub = small()
    assert [m.content for m in hub.get("s").messages()] == ["theirs"]
    with hub.session("s") as s:
        s.say("user", "ours")
        s.commit("ours")
    assert [m.content for m in other.get("s").messages()] == ["theirs", "ours"]


def test_many_commits_on_a_full_cache_disk_succeed_without_merging_indexes(
    host: OpenAs, small: Open, small_disk: Path
) -> None:
    """For which there is no room, and no need."""
    other, hub = host("other"), small(reserve=0)
    with hub.session("s") as s:
        fill(small_disk)
        for number in range(MERGE_MIN_TABLES + 2):
            s.say("user", f"{number}")
            s.commit(f"{number}")
    assert [m.content for m in other.get("s").messages()] == [
        str(n) for n in range(MERGE_MIN_TABLES + 2)
    ]
    assert not other.verify().problems
