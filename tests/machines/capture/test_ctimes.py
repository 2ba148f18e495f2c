"""The margin of the racy-clean rule is tried, not assumed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ortet.machines.capture.stat_index import COARSE_NS, TICK_NS, ctime_granularity_ns


def test_probing_the_ctime_granularity_leaves_no_files(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("f")
    before = tmp_path.stat()
    assert ctime_granularity_ns(tmp_path) in (0, TICK_NS, COARSE_NS)
    after = tmp_path.stat()
    assert (after.st_mtime_ns, after.st_ctime_ns) == (before.st_mtime_ns, before.st_ctime_ns)
    assert os.listdir(tmp_path) == ["f"]


def test_granularity_is_zero_only_if_every_change_moves_the_ctime(tmp_path: Path) -> None:
    """Where it says 0, a thousand changes, each after a stat, have a thousand times."""
    file = tmp_path / "f"
    times = set()
    for number in range(1000):
        file.write_text(str(number))
        times.add(file.stat().st_ctime_ns)
    assert (ctime_granularity_ns(tmp_path) == 0) == (len(times) == 1000)


@pytest.mark.parametrize("place", ["/proc", "/no/such/place"])
def test_granularity_is_coarse_where_no_file_can_be_written(place: str) -> None:
    assert ctime_granularity_ns(Path(place)) == COARSE_NS


def test_whole_seconds_are_coarse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fstat

    def cut(fd: int) -> os.stat_result:
        st = real(fd)
        return os.stat_result(st[:10], {"st_ctime_ns": st.st_ctime_ns // 10**9 * 10**9})

    monkeypatch.setattr("ortet.machines.capture.stat_index.os.fstat", cut)
    assert ctime_granularity_ns(tmp_path) == COARSE_NS


def test_ticks_are_a_small_margin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fstat
    first: list[int] = []

    def tick(fd: int) -> os.stat_result:
        st = real(fd)
        first.append(st.st_ctime_ns | 1)
        return os.stat_result(st[:10], {"st_ctime_ns": first[0]})

    monkeypatch.setattr("ortet.machines.capture.stat_index.os.fstat", tick)
    assert ctime_granularity_ns(tmp_path) == TICK_NS
