"""The Signal of a server over HTTP, shared by all hosts that use the server."""

from __future__ import annotations

import os
import time
from threading import Condition, Thread
from typing import cast

from ortet.backends.base import Signal
from ortet.backends.keys import check_name
from ortet.backends.remote.client import RemoteClient
from ortet.backends.remote.protocol import (
    SignalToken,
    SignalWaitRequest,
    TopicsRequest,
    pack,
    unpack,
)
from ortet.errors import OrtetError

_MAX_WAIT_SECONDS = 20.0
"""The longest wait of one request. It is then sent again."""
_FLUSH_TIMEOUT_SECONDS = 5.0
"""Seconds that `close` waits for pending notifications."""
_TOKEN_BITS = 40


class HttpSignal(Signal):
    """A signal that goes through a server.

    `notify` returns at once; a thread sends, and merges repeated topics. If the server is
    unreachable, a notification is lost, which is allowed for a hint.
    """

    def __init__(self, client: RemoteClient) -> None:
        self._client = client
        self._boots: list[str] = []
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._condition = Condition()
        self._pending_topics: dict[str, None] = {}
        self._is_publishing = False
        self._thread: Thread | None = None
        self._closed = False

    def notify(self, topic: str) -> None:
        check_name(topic)
        self._reset_if_forked()
        with self._condition:
            self._pending_topics[topic] = None
            if self._thread is None:
                self._thread = Thread(target=self._run, name="ortet-signal", daemon=True)
                self._thread.start()
            self._condition.notify_all()

    def token(self, topic: str) -> int:
        """Return the server's token combined with an index of the server process that issued it.

        The token is meaningless to a restarted server.
        """
        check_name(topic)
        self._reset_if_forked()
        mark = cast(
            SignalToken, unpack(SignalToken, self._post("token", pack(TopicsRequest([topic]))))
        )
        with self._condition:
            if mark.boot not in self._boots:
                self._boots.append(mark.boot)
            return self._boots.index(mark.boot) << _TOKEN_BITS | mark.token

    def wait(self, topic: str, token: int, timeout: float) -> bool:
        check_name(topic)
        self._reset_if_forked()
        boot = self._boots[token >> _TOKEN_BITS] if token >> _TOKEN_BITS < len(self._boots) else ""
        mark = SignalToken(boot, token & (1 << _TOKEN_BITS) - 1)
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            asked = SignalWaitRequest(topic, mark, max(0.0, min(left, _MAX_WAIT_SECONDS)))
            if unpack(bool, self._post("wait", pack(asked))):
                return True
            if left <= _MAX_WAIT_SECONDS:
                return False

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify_all()
            self._condition.wait_for(
                lambda: not self._pending_topics and not self._is_publishing, _FLUSH_TIMEOUT_SECONDS
            )

    def _reset_if_forked(self) -> None:
        if self._pid != os.getpid():
            self._reset()

    def _run(self) -> None:
        some = self._condition  # a forked child has another one
        while True:
            with some:
                self._is_publishing = False
                some.notify_all()
                while not self._pending_topics:
                    if self._closed:
                        return
                    some.wait()
                topics, self._pending_topics = list(self._pending_topics), {}
                self._is_publishing = True
            try:
                self._post("notify", pack(TopicsRequest(topics)))
            except OrtetError:
                continue  # lost, which is allowed for a hint

    def _post(self, verb: str, body: bytes) -> bytes:
        return self._client.call("POST", f"/raw/signal/{verb}", body).body
