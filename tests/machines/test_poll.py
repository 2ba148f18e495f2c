"""Waiting for descriptors: also for those that select(2) cannot have, and for very long."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

import ortet
from ortet.machines.poll import MAX_POLL_SECONDS, poll_readable


@pytest.fixture
def high() -> Iterator[tuple[int, int]]:
    """A pipe whose end to read from is above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 2048 if hard == resource.RLIM_INFINITY else min(hard, 2048)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
    low, write = os.pipe()
    try:
        read = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 1500)
        yield read, write
        os.close(read)
    finally:
        os.close(low)
        os.close(write)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_readable_works_with_descriptors_above_1023(high: tuple[int, int]) -> None:
    read, write = high
    assert poll_readable(read) == []
    assert poll_readable(read, seconds=0.01) == []
    os.write(write, b"x")
    assert poll_readable(read, seconds=None) == [read]
    assert poll_readable(read, seconds=1e30) == [read]
    assert MAX_POLL_SECONDS * 1000 < 1 << 31


def test_a_command_whose_time_out_never_comes(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    with ortet.open(tmp_path / "store") as hub, hub.session("one", workspace=work) as session:
        assert session.run("sleep 0.1; echo done", timeout=1e9).stdout == "done\n"


def test_readable_returns_every_ready_descriptor_of_several(high: tuple[int, int]) -> None:
    read, write = high
    other, end = os.pipe()
    try:
        os.write(end, b"x")
        assert poll_readable(read, other, seconds=None) == [other]
        os.write(write, b"x")
        assert sorted(poll_readable(read, other, seconds=None)) == sorted([read, other])
    finally:
        os.close(other)
        os.close(end)
