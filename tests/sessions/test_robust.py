"""Sessions that threads share, and sessions whose lease could not be given back."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from tests.fixtures.stores import Open

from ortet.errors import OrtetError, Refused
from ortet.hub.hub import Hub
from ortet.sessions.session import Session

THREADS, COMMITS = 8, 32


@pytest.mark.parametrize("files", [False, True], ids=["mind", "files"])
def test_commits_of_several_threads_all_succeed(hub: Hub, tmp_path: Path, files: bool) -> None:
    place = tmp_path / "work"
    place.mkdir()
    s = hub.session("s", workspace=place) if files else hub.session("s")

    def work(number: int) -> str:
        (place / str(number)).write_text("x")
        s.say("user", f"{number}")
        return s.commit(f"{number}").oid

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            commits = list(pool.map(work, range(COMMITS)))
    finally:
        sys.setswitchinterval(before)
    s.commit("last")
    line = {c.oid for c in hub.log("s")}
    assert line.issuperset(commits)
    said = [m.content for m in s.messages()]
    assert sorted(map(str, said)) == sorted(map(str, range(COMMITS)))
    s.close()
    with hub.session("s") as again:
        assert [m.content for m in again.messages()] == said
    hub.verify()


TURNS = """
import sys, ortet
with ortet.open(sys.argv[1]) as hub:
    for number in range(5):
        hub.turn("chat", f"{sys.argv[2]}.{number}", wait=60)
"""


def test_turns_of_several_threads_and_processes_on_one_session_all_succeed(hub: Hub) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", TURNS, str(hub.root), f"p{number}"])
        for number in range(2)
    ]
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda number: hub.turn("chat", f"t.{number}", wait=60), range(10)))
    assert [process.wait() for process in processes] == [0, 0]
    said = [str(m.content) for m in hub.get("chat").messages()]
    assert len(said) == len(set(said)) == 20
    for number in range(2):  # each writer's own turns are in its order
        assert [one for one in said if one.startswith(f"p{number}")] == [
            f"p{number}.{turn}" for turn in range(5)
        ]
    hub.verify()


def test_session_that_is_not_released_in_time_is_refused(hub: Hub) -> None:
    with hub.session("s"), pytest.raises(Refused, match="open in this process"):
        hub.session("s", wait=0.01)


class TestFullDisk:
    @pytest.fixture
    def full(self, small_disk: Path, opened: Open) -> tuple[Hub, Session, Path]:
        """A session, with an event, on a disk that is full to the last byte."""
        (small_disk / "s").mkdir()
        opened(small_disk / "s").close()
        (small_disk / "s" / "config.toml").write_text("reserve = 0\n")
        hub = opened(small_disk / "s")
        s = hub.session("s")
        s.say("user", "one")
        filler = small_disk / "filler"
        with open(filler, "ab", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                with suppress(OSError):
                    while True:
                        file.write(b"x" * size)
        return hub, s, filler

    def test_session_is_opened_again_when_there_is_room(
        self, full: tuple[Hub, Session, Path], opened: Open
    ) -> None:
        hub, s, filler = full
        with pytest.raises(OrtetError, match="free some space"):
            s.close()
        with pytest.raises(OrtetError, match="free some space"):
            hub.session("s")
        filler.unlink()
        with opened(hub.root).session("s") as again:  # another hub of this process
            assert [m.content for m in again.messages()] == ["one"]
            again.say("user", "two")
            again.commit("two")
        with hub.session("s") as again:
            assert [m.content for m in again.messages()] == ["one", "two"]


def test_session_that_a_handle_has_open_is_refused_in_another_hub_of_the_process(
    hub: Hub, opened: Open
) -> None:
    with hub.session("s"), pytest.raises(Refused, match="open in this process"):
        opened().session("s")
