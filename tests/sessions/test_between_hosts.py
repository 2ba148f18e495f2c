"""A session that is paused on one host goes on at another, with a network and a disk of its own:
files, mind, and running programs where both have the engine."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import psycopg
import pytest
from tests.fixtures.postgres import shared
from tests.fixtures.s3 import ENVIRON
from tests.fixtures.stores import OpenAs as Open
from tests.sessions import migrant

pytestmark = pytest.mark.root

_NEW_NETWORK = 0x40000000
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1

Connect = Callable[[], socket.socket]


class Host:
    """Namespaces of its own, which end with it: on its loopback are the servers that all hosts
    reach, and the disks of others are not to be seen."""

    def __init__(self, disk: Path, *, others: list[Path], schema: str, s3: str) -> None:
        self.disk = disk
        self._last = ExitStack()
        hold = " && ".join(f"mount -t tmpfs none {other}" for other in others)
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "sh", "-c", f"{hold} && echo && exec sleep infinity"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        self._last.callback(self._end)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"\n"
        place = parse_qs(urlsplit(shared().url()).query)["host"][0]
        at = urlsplit(s3)
        targets: list[Connect] = [
            lambda: _unix(f"{place}/.s.PGSQL.5432"),
            lambda: socket.create_connection((at.hostname, at.port)),
        ]
        with ThreadPoolExecutor(1) as pool:  # a thread that stays in that network is no good
            listeners = pool.submit(_listening_in, self._holder.pid, len(targets)).result()
        for listener, target in zip(listeners, targets, strict=True):
            self._last.callback(_forward(listener, target))
        database, bucket = (one.getsockname()[1] for one in listeners)
        options = {
            "sslmode": "disable",
            "gssencmode": "disable",
            "schema": schema,
            "bucket": f"s3://ortet/{schema}?endpoint=http://127.0.0.1:{bucket}",
        }
        parts = "&".join(f"{name}={quote(value, safe='')}" for name, value in options.items())
        self.url = f"postgresql://postgres@127.0.0.1:{database}/postgres?{parts}"

    def start(self, verb: str, **env: str) -> subprocess.Popen[bytes]:
        return self._run([migrant.__file__, verb], **env)

    def ortet(self, *words: str) -> str:
        """What a command line prints."""
        process = self._run(["-m", "ortet", *words])
        out, _ = process.communicate()
        assert process.returncode == 0, (words, out)
        return out.decode()

    def _run(self, words: list[str], **env: str) -> subprocess.Popen[bytes]:
        environ = {**os.environ, **ENVIRON, "ORTET_URL": self.url, "ORTET_AGENT": "off"}
        environ |= {"HOME": str(self.disk), "XDG_CACHE_HOME": str(self.disk / "cache"), **env}
        enter = ["nsenter", "--net", "--mount", "-t", str(self._holder.pid), "--"]
        return subprocess.Popen(
            [*enter, sys.executable, *words],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )

    def do(self, verb: str, **env: str) -> dict[str, Any]:
        """What it found."""
        process = self.start(verb, **env)
        out, _ = process.communicate()
        assert process.returncode == 0
        found: dict[str, Any] = json.loads(out)
        return found

    def close(self) -> None:
        self._last.close()

    def _end(self) -> None:
        self._holder.kill()
        self._holder.communicate()


def _listening_in(pid: int, count: int) -> list[socket.socket]:
    """Listeners on the loopback of another network: a socket stays where it was made."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{pid}/ns/net") as network:
        assert libc.setns(network.fileno(), _NEW_NETWORK) == 0, os.strerror(ctypes.get_errno())
    with socket.socket() as any_:
        asked = fcntl.ioctl(any_, _GET_FLAGS, struct.pack("16sH14x", b"lo", 0))
        flags = struct.unpack("16sH14x", asked)[1] | _UP
        fcntl.ioctl(any_, _SET_FLAGS, struct.pack("16sH14x", b"lo", flags))
    return [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]


def _unix(path: str) -> socket.socket:
    found = socket.socket(socket.AF_UNIX)
    found.connect(path)
    return found


def _forward(listener: socket.socket, connect: Connect) -> Callable[[], None]:
    """Pass on each connection; returns what ends it."""

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=serve, args=(client,), daemon=True).start()

    def serve(client: socket.socket) -> None:
        with suppress(OSError), client, connect() as server:
            back = threading.Thread(target=_pass, args=(server, client), daemon=True)
            back.start()
            _pass(client, server)
            back.join()

    thread = threading.Thread(target=accept)
    thread.start()

    def end() -> None:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()

    return end


def _pass(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@pytest.fixture
def hosts(tmp_path: Path, schema: str, s3: str) -> Iterator[tuple[Host, Host]]:
    disks = [tmp_path / "a", tmp_path / "b"]
    for disk in disks:
        disk.mkdir()
    with ExitStack() as last:
        made = []
        for disk in disks:
            others = [other for other in disks if other != disk]
            made.append(Host(disk, others=others, schema=schema, s3=s3))
            last.callback(made[-1].close)
        yield made[0], made[1]


@pytest.mark.slow
def test_session_with_running_programs_moves_to_another_host_and_back(
    hosts: tuple[Host, Host],
) -> None:
    one, two = hosts
    left = one.do("begin")
    assert (left["engine"], left["running"]) == ("criu", ["counter"])
    number, memory = left["counted"]
    assert number == "1"
    found = two.do("go_on")
    assert found["counted"] == ["2", memory]
    assert found["piped"] == ["3", "left in the pipe"]
    same = ("files", "messages", "facts", "plan", "engine", "running")
    assert {name: found[name] for name in same} == {name: left[name] for name in same}
    back = one.do("come_back")
    assert back["counted"] == ["4", memory]
    assert back["messages"] == ["one", "two"]
    assert back["plan"] == [found["plan"][0], 1]
    assert back["files"] == ["./deep/two:changed", "./four:four", "./three:three"]


@pytest.mark.slow
def test_paused_and_resumed_by_command_line(hosts: tuple[Host, Host]) -> None:
    """What commands of one host did and did not commit is there on the other, and back."""
    one, two = hosts
    one.do("write")
    one.ortet("run", "-w", "s", "--", "sh", "-c", "echo more > more")
    assert one.ortet("pause", "s") == "s is paused\n"
    assert two.ortet("resume", "s") == "s is paused\n"
    assert two.ortet("run", "-w", "s", "--", "sh", "-c", "rm other; cat more") == "more\n"
    two.ortet("say", "--session", "s", "by two")
    two.ortet("pause", "s", "--why", "done here")
    one.ortet("resume", "s")
    assert one.ortet("run", "-w", "s", "--", "ls") == "more\n"
    assert "by two" in one.ortet("journal", "s")


def test_host_without_criu_restores_files_and_session_state_only(hosts: tuple[Host, Host]) -> None:
    one, two = hosts
    left = one.do("begin")
    found = two.do("go_back", ORTET_CRIU="off")
    assert (found["engine"], found["running"]) == ("overlay", [])
    assert ["counter", "process"] in found["losses"]
    assert ["counter", "process"] in found["left"]
    same = ("files", "messages", "facts", "plan")
    assert {name: found[name] for name in same} == {name: left[name] for name in same}


@pytest.mark.slow
def test_uncommitted_files_of_a_killed_host_are_kept_in_the_reflog(
    hosts: tuple[Host, Host], schema: str
) -> None:
    one, two = hosts
    one.do("write")
    killed = one.start("be_killed")
    try:
        assert killed.stdout is not None
        assert killed.stdout.readline() == b"ready\n"
    finally:
        killed.kill()
        killed.communicate()
    with psycopg.connect(shared().url(), autocommit=True) as connection:
        connection.execute(f'UPDATE "{schema}".leases SET expires = 0')
    assert two.do("look")["files"] == ["./other:other"]
    back = one.do("reflog")
    assert back["files"] == ["./other:other"]
    assert ["never-committed"] in back["known"]


def test_fork_made_on_another_host_keeps_its_own_files(host: Open) -> None:
    one, two = host("one"), host("two")
    with one.session("s", engine="overlay") as s:
        s.run("echo first > file")
    with two.session("s") as s:
        assert s.run("cat file").stdout == "first\n"
        kid = s.fork(1)[0]
        kid.run("echo kid > file")
        kid.pause()
        s.run("echo second > file")
    assert [
        two.workspaces.table.need(each.internals.row.branch).left.keys() for each in (s, kid)
    ] == [
        {one.store.host},
        set(),
    ]
    with one.session(kid.name) as again, one.session("s") as s:
        assert again.run("cat file").stdout == "kid\n"
        assert s.run("cat file").stdout == "second\n"
    with two.session(kid.name) as again:
        assert again.run("cat file").stdout == "kid\n"
    one.verify()
