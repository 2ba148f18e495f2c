"""Signal through a server: heard by all that listen there, on whatever host."""

from __future__ import annotations

import os
import time
from threading import Condition, Thread
from typing import cast

from ortet.backends.base import Signal
from ortet.backends.keys import check_name
from ortet.backends.remote.client import Link
from ortet.backends.remote.protocol import Mark, Topics, Waiting, pack, unpack
from ortet.errors import OrtetError

_LONGEST = 20.0
"""Seconds that one question may wait for its answer; then it is asked again."""
_LAST = 5.0
"""Seconds that closing waits for what was still to be told."""
_BITS = 40


class HttpSignal(Signal):
    """Telling costs its caller nothing: a thread does it, the same topic once for many times. A
    server that cannot be reached hears nothing: a hint may be lost."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._boots: list[str] = []
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._some = Condition()
        self._topics: dict[str, None] = {}
        self._telling = False
        self._thread: Thread | None = None
        self._closed = False

    def notify(self, topic: str) -> None:
        check_name(topic)
        self._here()
        with self._some:
            self._topics[topic] = None
            if self._thread is None:
                self._thread = Thread(target=self._run, name="ortet-signal", daemon=True)
                self._thread.start()
            self._some.notify_all()

    def token(self, topic: str) -> int:
        """The server's own, and which of the processes gave it that were there since we are: its
        number means nothing to the next one."""
        check_name(topic)
        self._here()
        mark = cast(Mark, unpack(Mark, self._post("token", pack(Topics([topic])))))
        with self._some:
            if mark.boot not in self._boots:
                self._boots.append(mark.boot)
            return self._boots.index(mark.boot) << _BITS | mark.token

    def wait(self, topic: str, token: int, timeout: float) -> bool:
        check_name(topic)
        self._here()
        boot = self._boots[token >> _BITS] if token >> _BITS < len(self._boots) else ""
        mark = Mark(boot, token & (1 << _BITS) - 1)
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            asked = Waiting(topic, mark, max(0.0, min(left, _LONGEST)))
            if unpack(bool, self._post("wait", pack(asked))):
                return True
            if left <= _LONGEST:
                return False

    def close(self) -> None:
        with self._some:
            self._closed = True
            self._some.notify_all()
            self._some.wait_for(lambda: not self._topics and not self._telling, _LAST)

    def _here(self) -> None:
        if self._pid != os.getpid():
            self._start()

    def _run(self) -> None:
        some = self._some  # a child of fork(2) has another
        while True:
            with some:
                self._telling = False
                some.notify_all()
                while not self._topics:
                    if self._closed:
                        return
                    some.wait()
                topics, self._topics = list(self._topics), {}
                self._telling = True
            try:
                self._post("notify", pack(Topics(topics)))
            except OrtetError:
                continue  # lost, which a hint may be

    def _post(self, verb: str, body: bytes) -> bytes:
        return self._link.call("POST", f"/raw/signal/{verb}", body).body
