"""watch, as a process beside others that change the files."""

from __future__ import annotations

import fcntl
import json
import random
import select
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.commands import Commit, Ortet
from tests.fixtures.waiting import WAIT, eventually, is_waited_for

import ortet as library
from ortet.cli.commands.watch import commit_message

_NEVER = "100000"  # seconds in which nothing settles


class Watch:
    """A watcher that runs; what it says, line by line."""

    def __init__(self, ortet: Ortet, proj: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            ortet.argv("watch", "--json", *words),
            cwd=proj,
            env=ortet.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )

    def made(self) -> Any:
        """The next commit."""
        return json.loads(self._line(self.process.stdout))

    def until(self, path: str) -> Any:
        """The first commit that names a path."""
        while path not in (made := self.made())["message"]:
            pass
        return made

    def trouble(self) -> str:
        """The kind of what is in its way."""
        kind: str = json.loads(self._line(self.process.stderr))["kind"]
        return kind

    def end(self, number: int = signal.SIGINT) -> list[Any]:
        """Ask it to end; the commits that it still makes."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=WAIT)
        assert self.process.returncode == 0, err
        return [json.loads(line) for line in out.splitlines()]

    def _line(self, stream: Any) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([stream], [], [], WAIT)
            assert ready, "it says nothing"
            byte = stream.read(1)
            assert byte, f"it ended: {self.process.stderr and self.process.stderr.read()!r}"
            line += byte
        return line


Start = Callable[..., Watch]


@pytest.fixture
def start(ortet: Ortet, proj: Path) -> Iterator[Start]:
    made: list[Watch] = []

    def begin(*words: str) -> Watch:
        made.append(Watch(ortet, proj, *words))
        return made[-1]

    yield begin
    for watch in made:
        watch.process.kill()
        watch.process.communicate()


def put(proj: Path, name: str, text: str) -> None:
    """At once: one that is seen between its making and its writing has changed twice."""
    whole = proj.with_name("whole")
    whole.write_text(text)
    whole.replace(proj / name)


def log(ortet: Ortet, proj: Path) -> list[str]:
    return [one["message"] for one in ortet.json("log", cwd=proj)]


def test_watch_commits_when_files_have_settled(start: Start, ortet: Ortet, proj: Path) -> None:
    watch = start("--settle", "0.1")
    assert watch.made()["message"] == "2 files added: a.txt, src/main.py"  # which were there
    put(proj, "a.txt", "two\n")
    made = watch.made()
    assert (made["message"], made["changed"], made["name"]) == ("1 file changed: a.txt", 1, "proj")
    (proj / "a.txt").unlink()
    assert watch.made()["message"] == "1 file removed: a.txt"
    assert watch.end() == []
    assert len(log(ortet, proj)) == 3
    ortet("verify", cwd=proj)


def test_watch_prints_a_line_per_commit_and_accepts_a_message(ortet: Ortet, proj: Path) -> None:
    done = ortet("watch", "--once", "--settle", "0", "-m", "by itself", cwd=proj)
    assert "[proj " in done.out and "] by itself  (" in done.out and done.out.count("\n") == 1
    assert done.err.startswith(f"watching {proj}: a commit when nothing has changed for 0 s")
    assert log(ortet, proj) == ["by itself"]


def test_watch_ignores_changes_to_ignored_files(
    start: Start, ortet: Ortet, proj: Path, commit: Commit
) -> None:
    commit("first", **{".ortetignore": "*.log\nout/\n"})
    watch = start("--settle", "0.1")
    put(proj, "x.log", "noise")
    (proj / "out").mkdir()
    (proj / "out" / "x").write_text("noise")
    put(proj, "b.txt", "real")
    assert watch.until("b.txt")["message"] == "1 file added: b.txt"
    put(proj, "y.log", "noise")
    assert watch.end() == []
    assert len(log(ortet, proj)) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_watch_commits_pending_changes_when_it_is_terminated(
    start: Start, ortet: Ortet, proj: Path, commit: Commit, number: int
) -> None:
    commit("first")
    watch = start("--settle", "0.1")
    put(proj, "b.txt", "seen")
    watch.made()
    watch.process.send_signal(signal.SIGSTOP)
    put(proj, "c.txt", "not settled")
    watch.process.send_signal(number)
    watch.process.send_signal(signal.SIGCONT)
    out, _ = watch.process.communicate(timeout=WAIT)
    assert (watch.process.returncode, "c.txt" in out.decode()) == (0, True)
    assert log(ortet, proj)[0] == "1 file added: c.txt"


def test_watch_commits_after_at_most_when_changes_never_end(
    start: Start, ortet: Ortet, proj: Path, commit: Commit
) -> None:
    commit("first")
    watch, done = start("--settle", _NEVER, "--at-most", "0.3"), threading.Event()
    put(proj, "server.log", "line\n")

    def write() -> None:
        with (proj / "server.log").open("a") as file:
            while not done.wait(0.01):
                file.write("line\n")
                file.flush()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        sizes = [_size(ortet, watch.until("server.log")["oid"]) for _ in range(3)]
    finally:
        done.set()
        writer.join()
    assert 0 < sizes[0] < sizes[1] < sizes[2]


def _size(ortet: Ortet, oid: str) -> int:
    return len(ortet("show", oid, "server.log", cwd=ortet.home).out)


def test_watch_sees_changes_deep_in_new_directories(
    start: Start, ortet: Ortet, proj: Path, commit: Commit
) -> None:
    commit("first")
    watch = start("--settle", "0.1")
    deep = proj / "one" / "two" / "three"
    deep.mkdir(parents=True)
    put(proj, "one/two/three/a", "a")
    watch.until("one/two/three/a")
    put(proj, "one/two/three/b", "b")
    assert watch.made()["message"] == "1 file added: one/two/three/b"


def test_watch_finds_changes_whose_events_were_lost(
    start: Start, ortet: Ortet, proj: Path, commit: Commit
) -> None:
    commit("first", busy="", busy2="")
    watch = start("--settle", "0.1")
    put(proj, "b.txt", "seen")
    watch.made()
    watch.process.send_signal(signal.SIGSTOP)
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    files = [(proj / name).open("wb", buffering=0) for name in ("busy", "busy2")]
    for number in range(most + 10):
        files[number % 2].write(b"x")
    for file in files:
        file.close()
    put(proj, "unheard.txt", "there")
    watch.process.send_signal(signal.SIGCONT)
    assert watch.made()["message"] == "3 files changed: busy, busy2, unheard.txt"


@contextmanager
def turn_of(ortet: Ortet, proj: Path) -> Iterator[Path]:
    """Lock the files for others, as a restore does. Yields the lock file."""
    with library.open(ortet.store) as hub:
        row = next(row for row in hub.workspaces.table.all() if row.directory == proj)
    home = ortet.store / "local" / "machines" / row.machine
    with (home / "turn").open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield home / "turn"


def test_watch_waits_while_another_process_holds_the_workspace(
    start: Start, ortet: Ortet, proj: Path, commit: Commit
) -> None:
    commit("first")
    watch = start("--settle", "0.1")
    put(proj, "b.txt", "b")
    watch.made()
    with turn_of(ortet, proj) as lock:
        put(proj, "c.txt", "c")
        eventually(lambda: is_waited_for(lock))
        put(proj, "d.txt", "d")
    assert watch.until("c.txt")["message"] == "2 files added: c.txt, d.txt"


def insist(ortet: Ortet, proj: Path, *words: str) -> None:
    """Who comes at the very moment of another is told to repeat the call."""

    def is_done() -> bool:
        done = ortet(*words, cwd=proj, code=None)
        assert done.code == 0 or "repeat the call" in done.err, done.err
        return done.code == 0

    eventually(is_done)


def test_watch_works_beside_other_commits_and_restores(
    start: Start, ortet: Ortet, proj: Path, commit: Commit
) -> None:
    commit("first")
    one, two = start("--settle", "0.1"), start("--settle", "0.1")
    for number in range(5):
        put(proj, f"{number}.txt", "x")
        insist(ortet, proj, "commit", "-m", f"by hand {number}")
    insist(ortet, proj, "restore", "HEAD~2")
    put(proj, "last.txt", "x")
    one.end()
    two.end()
    assert log(ortet, proj)[0] == "1 file added: last.txt"
    assert sum("by itself" in message for message in log(ortet, proj)) == 0
    ortet("verify", cwd=proj)


def test_watch_reports_a_missing_directory_and_continues(
    start: Start, ortet: Ortet, proj: Path, commit: Commit
) -> None:
    commit("first")
    watch = start("--settle", "0.1")
    put(proj, "b.txt", "b")
    watch.made()
    shutil.move(proj, proj.with_name("away"))
    assert watch.trouble() == "no_directory"
    shutil.move(proj.with_name("away"), proj)
    put(proj, "c.txt", "c")
    assert watch.made()["message"] == "1 file added: c.txt"
    watch.process.send_signal(signal.SIGSTOP)  # else it may see half of it gone
    shutil.rmtree(proj)
    watch.process.send_signal(signal.SIGCONT)
    assert watch.trouble() == "no_directory"
    other = proj.with_name("other")
    other.mkdir()
    put(other, "new.txt", "new")
    other.rename(proj)
    assert ortet("show", watch.made()["oid"], "new.txt", cwd=ortet.home).out == "new"
    put(proj, "newer.txt", "newer")
    assert watch.made()["message"] == "1 file added: newer.txt"


def test_watch_ends_when_its_workspace_is_dropped(
    start: Start, ortet: Ortet, proj: Path, commit: Commit
) -> None:
    commit("first")
    watch = start("--settle", "0.1")
    put(proj, "b.txt", "b")
    watch.made()
    ortet("drop", "proj", cwd=proj)
    put(proj, "c.txt", "c")
    assert watch.trouble() == "dropped"
    assert watch.process.wait(WAIT) == 4


@pytest.mark.root
@pytest.mark.disk("8m")
def test_watch_reports_a_full_disk_and_continues(
    small_disk: Path, start: Start, ortet: Ortet, proj: Path
) -> None:
    (proj / ".ortet").unlink()
    ortet("init", "--store", str(small_disk / "store"), cwd=proj)
    (small_disk / "store" / "config.toml").write_text("reserve = 0\n")
    watch = start("--settle", "0.1")
    watch.made()
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while file.write(bytes(4096)):
            pass
    put(proj, "big", random.randbytes(150_000).hex())
    assert watch.trouble() == "disk_full"
    filler.unlink()
    assert "big" in watch.made()["message"]
    put(proj, "c.txt", "c")
    assert watch.made()["message"] == "1 file added: c.txt"
    assert watch.end() == []


def test_watch_polls_where_inotify_is_off(
    start: Start, ortet: Ortet, proj: Path, commit: Commit
) -> None:
    commit("first")
    (ortet.store / "config.toml").write_text("watch = false\n")
    watch = start("--settle", "0.1", "--every", "0.1")
    for number in range(3):
        put(proj, f"{number}.txt", "x")
        assert watch.made()["message"] == f"1 file added: {number}.txt"
    assert watch.end() == []


def test_a_private_copy_is_not_watched(ortet: Ortet, proj: Path, commit: Commit) -> None:
    commit("first")
    ortet("fork", cwd=proj)
    assert ortet.kind("watch", "-w", "proj/1", cwd=proj, code=2) == "not_inplace"
    assert ortet.kind("watch", cwd=ortet.home, code=4) == "no_workspace"
    assert ortet.kind("watch", "-C", "nowhere", cwd=proj, code=4) == "no_directory"


def test_watch_messages_name_the_changed_files(tmp_path: Path) -> None:
    with library.open(tmp_path / "store") as hub:
        place = tmp_path / "place"
        place.mkdir()
        ws = hub.workspace(place)
        ws.commit()
        for name in ("d", "c", "b", "a", "\x1b[31mred"):
            (place / name).write_text(name)
        said = commit_message(ws.status().changes)
        assert said == "5 files added: \\x1b[31mred, a, b, ..."
        ws.commit(said)
        (place / "a").write_text("other")
        (place / "e").mkdir()
        assert commit_message(ws.status().changes) == "1 file changed: a"
        (place / "a").write_text("a")
        ws.commit()
        (place / "f").mkdir()
        assert commit_message(ws.status().changes) == "1 file added: f"
