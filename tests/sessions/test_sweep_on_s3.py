"""Sweeps of a store in PostgreSQL and a real S3, killed at each of their points, beside processes
of two other hosts that write all the time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.fixtures import forked
from tests.fixtures.postgres import Shared, drop_schema, new_schema, shared
from tests.fixtures.s3 import set_environ
from tests.fixtures.stores import host_environ
from tests.fixtures.waiting import WAIT

from ortet._util.failpoints import FAULT_VARIABLE
from ortet.config.environment import open_hub
from ortet.hub.hub import Hub
from ortet.objects.base import Kind
from ortet.objects.gc import sweep_remote
from ortet.objects.remote.pack_set import DELETION_MARK_SUFFIX

POINTS = ["sweep.after-marks", "sweep.after-epoch", "sweep.before-delete", "sweep.after-delete"]

_WRITER = """
import json, os, sys, ortet
from pathlib import Path
from ortet.sessions.history.fork_session import fork_at
from ortet.ids import from_hex
from ortet.objects.base import Kind
url, name, place = sys.argv[1:]
work = Path(place)
work.mkdir()
blobs = [os.urandom(20_000) for _ in range(4)]
turn, forks = 0, []
with ortet.open(url) as hub, hub.session(name) as s, hub.workspace(work, name=f"w-{name}") as w:
    while True:
        with hub.store.writing():  # found again later, unless a sweep has taken it
            hub.objects.put(Kind.BLOB, blobs[(turn + 2) % 4])
            hub.objects.flush()
        (work / f"file{turn % 3}").write_bytes(blobs[turn % 4])
        s.say("user", str(turn))
        info = s.commit(str(turn))
        w.commit(str(turn))
        if turn % 5 == 4:
            s.restore(hub.log(info.oid, limit=2)[1].oid)
            s.restore(info.oid)
            (one,) = fork_at(s, from_hex(info.oid), names=[f"at{turn}"])
            one.close()
            forks.append(turn)
        print(json.dumps([turn, forks]), flush=True)  # it counts from here on
        turn += 1
        if not sys.stdin.readline().strip():
            break
"""

_SWEEPER = """
import sys, ortet
from ortet.objects.gc import sweep_remote
sweep_remote.GRACE = -60.0
ortet.open(sys.argv[1]).sweep(min_garbage=0.0, expire_ns=0)
"""


class Writer:
    """A process of a host of its own that says what it has committed."""

    def __init__(self, url: str, name: str, tmp_path: Path) -> None:
        self.name = name
        self.done = -1
        self.forks: list[int] = []
        self._process = forked.Popen(
            [sys.executable, "-c", _WRITER, url, name, str(tmp_path / f"work-{name}")],
            env=host_environ(tmp_path, name),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._process.stdin.write("on\n" * 3)  # type: ignore[union-attr]
        self._process.stdin.flush()  # type: ignore[union-attr]

    def go_on(self) -> None:
        """Wait for a turn, and let it do another beside whatever is done here."""
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        self.done, self.forks = json.loads(self._process.stdout.readline())
        self._process.stdin.write("on\n")
        self._process.stdin.flush()

    def end(self) -> None:
        out, _ = self._process.communicate("\n", timeout=WAIT)
        assert self._process.returncode == 0
        if lines := out.splitlines():
            self.done, self.forks = json.loads(lines[-1])

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def url(postgres: Shared, s3: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    set_environ(monkeypatch)
    schema = new_schema()
    bucket = quote(f"s3://ortet/{schema}?endpoint={s3}", safe="")
    yield f"{shared().url()}&schema={schema}&bucket={bucket}"
    drop_schema(shared().url(), schema)


@pytest.fixture
def writers(url: str, tmp_path: Path) -> Iterator[list[Writer]]:
    both = [Writer(url, name, tmp_path) for name in ("a", "b")]
    yield both
    for writer in both:
        writer.kill()


def leave_garbage(hub: Hub) -> bytes:
    """What no head and no event leads to."""
    with hub.store.writing():
        oid = hub.objects.put(Kind.BLOB, os.urandom(50_000))
        hub.objects.flush()
    return oid


def test_killed_sweeps_beside_two_hosts_that_write_lose_nothing(
    url: str, writers: list[Writer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_remote, "GRACE", -60.0)  # packs may go at once
    with open_hub(url, environ=host_environ(tmp_path, "one")) as hub:
        garbage = []
        for point in POINTS:
            for writer in writers:
                writer.go_on()
            garbage.append(leave_garbage(hub))
            done = forked.run(
                [sys.executable, "-c", _SWEEPER, url],
                env={**host_environ(tmp_path, "one"), FAULT_VARIABLE: f"{point}:kill"},
                timeout=WAIT,
                check=False,
            )
            assert done.returncode == -signal.SIGKILL, point
        for writer in writers:
            writer.end()
        hub.sweep(min_garbage=0.0, expire_ns=0)
        left = {found.key for found in hub.bucket.list("packs/")}
    assert not any(key.endswith(DELETION_MARK_SUFFIX) for key in left)
    with open_hub(url, environ=host_environ(tmp_path, "fresh")) as fresh:
        assert not fresh.verify().problems
        assert not any(fresh.objects.find_by_prefix(oid.hex()) for oid in garbage)
        for writer in writers:
            _check(fresh, writer, tmp_path)


def _check(hub: Hub, writer: Writer, tmp_path: Path) -> None:
    said = [str(turn) for turn in range(writer.done + 1)]
    with hub.session(writer.name) as s:
        assert [m.content for m in s.messages()] == said
    for turn in writer.forks:
        fork = hub.get(f"{writer.name}/at{turn}")
        assert [m.content for m in fork.messages()] == said[: turn + 1]
    out = tmp_path / f"out-{writer.name}"
    hub.restore(f"w-{writer.name}", to=out)
    for path in (tmp_path / f"work-{writer.name}").iterdir():
        assert (out / path.name).read_bytes() == path.read_bytes()
