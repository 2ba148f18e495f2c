"""stats: bytes by storage tier and slow calls, through a real process."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.fixtures.commands import Ortet
from tests.fixtures.postgres import shared

from ortet.cli.slow_calls import SLOW_CALLS_FILE, SlowCall, record_slow_call, slowest, time_call


@pytest.mark.parametrize("kind", ["embedded", "shared"])
def test_stats_counts_bytes_by_storage_tier(
    ortet: Ortet, tmp_path: Path, schema: str, kind: str
) -> None:
    place = tmp_path / "proj"
    place.mkdir()
    if kind == "shared":
        url = f"{shared().url()}&bucket=file://{tmp_path}/bucket&schema={schema}"
        ortet("init", "--store", url, cwd=place)
    else:
        ortet("init", cwd=place)
    for number in range(3):  # the same content in each commit, and a little that is new
        (place / "big").write_bytes(b"".join(os.urandom(16) * 4096 for _ in range(4)))
        (place / f"copy{number}").write_bytes((place / "big").read_bytes())
        ortet("commit", "-m", str(number), cwd=place)
    ortet("session", "new", "s", cwd=place)
    ortet("say", "-s", "s", "hello", cwd=place)
    found = ortet.json("stats", cwd=place)
    assert (found["sessions"], found["statuses"]) == (1, {"paused": 1})
    assert found["events"] == len(ortet.json("journal", "s", cwd=place))
    assert found["commits"] == 3
    assert found["copies"] > found["pack_bytes"] + found["tail_bytes"] > 0
    assert found["dedup"] > 1
    assert not found["partial"]
    tiers = found["tiers"]
    assert tiers["catalog"] > 0
    assert (tiers["bucket"] if kind == "shared" else tiers["tails"]) > 0
    assert (found["partitions"] is not None) == (kind == "shared")
    text = ortet("stats", cwd=place).out
    for word in ("store ", "sessions ", "events ", "catalog ", "bucket ", "cache ", "saved "):
        assert f"\n{word}" in f"\n{text}"
    quick = ortet.json("stats", "--quick", cwd=place)
    assert (quick["dedup"], quick["objects"]) == (0.0, found["objects"])


def test_stats_lists_slow_calls(ortet: Ortet, proj: Path) -> None:
    said = SlowCall("commit", 12345.6, time.time_ns(), "ab" * 16)
    (ortet.store / "local").mkdir(exist_ok=True)
    record_slow_call(ortet.store, said)
    assert ortet.json("stats", cwd=proj)["slowest"][0]["ms"] == 12345.6
    assert "12346 ms" in ortet("stats", cwd=proj).out


def test_only_the_slowest_recent_calls_are_kept(tmp_path: Path) -> None:
    (tmp_path / "local").mkdir()
    now = time.time_ns()
    record_slow_call(tmp_path, SlowCall("commit", 9999.0, now - 8 * 86_400 * 10**9))  # long ago
    for number in range(200):
        record_slow_call(tmp_path, SlowCall("recall", 100.0 + (number * 7) % 200, now))
    record_slow_call(tmp_path, SlowCall("recall", 10.0, now))  # nobody would ask
    found = slowest(tmp_path)
    assert [one.ms for one in found] == [299.0 - number for number in range(50)]
    (tmp_path / SLOW_CALLS_FILE).write_bytes(b"{damaged")
    assert slowest(tmp_path) == []
    record_slow_call(tmp_path / "nowhere", SlowCall("commit", 1000.0, now))  # no error


def test_a_call_that_fails_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "local").mkdir()
    monkeypatch.setattr("ortet.cli.slow_calls._MIN_RECORDED_SECONDS", 0.0)
    with pytest.raises(ValueError), time_call("commit", "cli") as timing:
        timing.root = tmp_path
        raise ValueError
    assert [one.what for one in slowest(tmp_path)] == ["commit"]
