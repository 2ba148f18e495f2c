"""A proxy before a server on a Unix socket that can lose an answer, as a failover does."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

from ortet.testing.processes import WAIT


class Cut:
    """A proxy that passes everything on, until it must lose an answer."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.lose: Callable[[bytes], bool] = lambda _sent: False
        self.lost = 0
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._start(self._accept)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._sockets:
            _shut(one)
        for thread in self._threads:
            thread.join(WAIT)
        for one in self._sockets:
            one.close()

    def _start(self, work: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=work, args=args)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._target)
            self._sockets += (client, server)
            doomed = threading.Event()
            self._start(self._pass, client, server, doomed, True)
            self._start(self._pass, server, client, doomed, False)

    def _pass(
        self, source: socket.socket, sink: socket.socket, doomed: threading.Event, up: bool
    ) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if up and self.lose(data):
                    doomed.set()
                if not up and doomed.is_set():
                    self.lost += 1
                    break
                sink.sendall(data)
        _shut(source)
        _shut(sink)


def _shut(one: socket.socket) -> None:
    with suppress(OSError):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.shutdown(socket.SHUT_RDWR)
