"""A real Ray cluster for tests: nodes with an address each, whose processes end with their test."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

WAIT = 240.0
_ENVIRON = {
    "RAY_raylet_start_wait_time_s": "60",  # a host that runs other tests, too, is slow
    "RAY_health_check_timeout_ms": "60000",
    "GRPC_ENABLE_FORK_SUPPORT": "0",  # with it, what serves a client dies when it is started
}

_RAY = Path(sys.executable).with_name("ray")


class Node:
    """A raylet with all that belongs to it, in a session of its own."""

    def __init__(self, log: Path, *options: str, env: dict[str, str] | None = None) -> None:
        self._log = log
        command = [sys.executable, str(_RAY), "start", "--block", "--disable-usage-stats"]
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [*command, "--object-store-memory=80000000", *options],
                env={**os.environ, **_ENVIRON, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def is_up(self) -> bool:
        """When it has joined, and is done with starting; False when Ray has given it up."""
        end = time.monotonic() + WAIT
        while b"will now block forever" not in self._log.read_bytes():
            if self._process.poll() is not None:
                return False
            assert time.monotonic() < end, self._log.read_text()
            time.sleep(0.05)
        return True

    def kill(self) -> None:
        """All its processes at once, as when a host loses power."""
        end = time.monotonic() + WAIT
        while living := _session(self._process.pid):
            assert time.monotonic() < end, living
            for pid in living:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        self._process.wait(WAIT)


class RayCluster:
    """A head, which works, too, and the nodes that are added."""

    def __init__(self, *, env: dict[str, str] | None = None, **resources: float) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="orr-", dir="/tmp"))  # sockets have short names
        self._nodes: list[Node] = []
        self._number = 2
        try:
            self._begin(env, resources)
        except BaseException:
            self.close()
            raise

    def _begin(self, env: dict[str, str] | None, resources: dict[str, float]) -> None:
        self._client = _free_port()
        self._start(
            "--head",
            "--port=0",
            "--num-cpus=2",
            f"--resources={json.dumps(resources)}",
            "--include-dashboard=false",
            f"--temp-dir={self._root}/t",
            f"--ray-client-server-port={self._client}",
            env=env,
        )
        self.address = (self._root / "t/ray_current_cluster").read_text()

    @property
    def url(self) -> str:
        """For a client that is no node."""
        return f"ray://127.0.0.2:{self._client}"

    def add(self, *, env: dict[str, str] | None = None, **resources: float) -> Node:
        return self._start(
            f"--address={self.address}",
            "--num-cpus=2",
            f"--resources={json.dumps(resources)}",
            env=env,
        )

    def kill_head(self) -> None:
        self._nodes[0].kill()

    def close(self) -> None:
        for node in reversed(self._nodes):
            node.kill()
        shutil.rmtree(self._root, ignore_errors=True)

    def _start(self, *options: str, env: dict[str, str] | None = None) -> Node:
        log = self._root / f"{len(self._nodes)}.log"
        for _ in range(3):  # a raylet ends when an agent of it needs 30 s to begin, on any host
            node = Node(log, f"--node-ip-address={self._address()}", *options, env=env)
            self._nodes.append(node)
            if node.is_up():  # two that start at once take the same names of sockets
                self._number += 1
                return node
            self._nodes.pop().kill()
        raise AssertionError(log.read_text())

    def _address(self) -> str:
        return f"127.0.0.{self._number}"


def _free_port() -> int:
    """Ray takes it seconds later, on 127.0.0.1, too: one of those that the system gives to nobody
    who asks for any, and that Ray does not use otherwise."""
    for port in random.sample(range(24_100, 32_700), 100):
        with socket.socket() as free, suppress(OSError):
            free.bind(("", port))
            return port
    raise AssertionError("no port is free")


def _session(leader: int) -> list[int]:
    """The living processes of a session."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            state, _, _, session = _stat(name)
            if session == str(leader) and state != "Z":
                found.append(int(name))
    return found


def _stat(pid: str) -> list[Any]:
    text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    return text.rpartition(")")[2].split()[:4]
