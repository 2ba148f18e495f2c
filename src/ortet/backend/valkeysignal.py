"""Signal on a Valkey or Redis server: heard by all servers of a store, each on one connection."""

from __future__ import annotations

import os
import weakref
from threading import Condition, RLock, Thread

from ortet.backend.abc import Signal
from ortet.backend.keys import check_name
from ortet.backend.signals import Board
from ortet.backend.valkeyaddress import Address, check_space
from ortet.backend.valkeylink import Line, Link
from ortet.errors import Invalid

_LOOK = 1.0
"""Seconds after which anything may have happened, while the server cannot be heard."""
_QUIET = 1.0
"""Seconds of silence after which it is asked whether it is there."""
_ANSWER = 3.0
_LAST = 2.0
"""Seconds that closing waits for what was still to be told."""


class ValkeySignal(Signal):
    """Telling costs its caller nothing: a thread does it. All of a process that hear or tell of one
    space share their connections. A server that is gone is tried again each second, and until then
    who waits is woken each second: it is slower, and nothing is missed."""

    def __init__(self, address: Address, space: str, *, prefix: str = "") -> None:
        self._where = (address, f"ortet:{{{check_space(space)}}}:s:")
        self._space = space
        self._prefix = prefix
        self._pid = 0
        self._post()

    def notify(self, topic: str) -> None:
        self._post().tell(check_name(topic))

    def token(self, topic: str) -> int:
        check_name(topic)
        return self._post().ear(self._prefix).token()

    def wait(self, topic: str, token: int, timeout: float) -> bool:
        check_name(topic)
        ear = self._post().ear(self._prefix)
        with ear.changed:
            return ear.changed.wait_for(lambda: ear.board.since(topic, token), timeout)

    def news(self, token: int | None, timeout: float) -> tuple[int, set[str] | None]:
        ear = self._post().ear(self._prefix)
        now = ear.token() if token is None else token
        with ear.changed:
            if token is not None:
                ear.changed.wait_for(lambda: ear.board.now > now, timeout)
            return ear.board.now, ear.board.topics(now)

    def narrowed(self, prefix: str) -> Signal:
        if not prefix.isalnum():
            raise Invalid("bad_topic", f"{prefix!r}: give a word of letters and digits")
        return ValkeySignal(self._where[0], self._space, prefix=prefix)

    @property
    def trouble(self) -> str:
        """Why the server is not heard; "" when it is."""
        return self._post().ear(self._prefix).trouble

    def close(self) -> None:
        if self._pid == os.getpid():
            self._shared.flush()
            self._leave()

    def _post(self) -> _Post:
        if self._pid != os.getpid():  # threads and connections stay with the parent
            self._pid = os.getpid()
            self._shared = _join(*self._where)
            self._leave = weakref.finalize(self, _leave, self._shared)
        return self._shared


class _Post:
    """What the signals of one process and space have in common."""

    def __init__(self, address: Address, head: str) -> None:
        self.pid = os.getpid()
        self.where = (address, head)
        self.users = 0
        self._link = Link(address)
        self._head = head
        self._ears: dict[str, _Ear] = {}
        self._some = Condition()
        self._topics: dict[str, None] = {}
        self._telling = False
        self._lost = False  # what was told last
        self._thread: Thread | None = None
        self._closed = False

    def tell(self, topic: str) -> None:
        with self._some:
            self._topics[topic] = None
            if self._thread is None:
                self._thread = Thread(target=self._run, name="ortet-valkey-tell", daemon=True)
                self._thread.start()
            self._some.notify_all()

    def flush(self) -> None:
        with self._some:
            self._some.wait_for(lambda: self._lost or not (self._topics or self._telling), _LAST)

    def ear(self, prefix: str) -> _Ear:
        found = self._ears.get(prefix)
        if found is None:
            with self._some:
                if prefix not in self._ears:
                    self._ears[prefix] = _Ear(self._link, self._head, prefix)
                found = self._ears[prefix]
        return found

    def stop(self) -> None:
        with self._some:
            self._closed = True
            self._some.notify_all()
            ears = list(self._ears.values())
        for ear in ears:
            ear.stop()

    def _run(self) -> None:
        line: Line | None = None
        while topics := self._next():
            commands = [("PUBLISH", self._head + topic, b"") for topic in topics]
            for _ in range(2):  # a connection that was idle may be of a server that is gone
                try:
                    line = line or self._link.connect()
                    line.calls(commands)
                    break
                except self._link.troubles:
                    if line is not None:
                        line.close()
                    line = None
            if line is None:  # lost, which a hint may be
                with self._some:
                    self._lost, self._telling = True, False
                    self._some.notify_all()
                    self._some.wait_for(lambda: self._closed, _LOOK)
            else:
                self._lost = False
        if line is not None:
            line.close()

    def _next(self) -> list[str]:
        with self._some:
            self._telling = False
            self._some.notify_all()
            self._some.wait_for(lambda: self._topics or self._closed)
            topics, self._topics = list(self._topics), {}
            self._telling = bool(topics)
            return topics


class _Ear:
    """One connection that hears topics which begin with a word, for all who wait for some."""

    def __init__(self, link: Link, head: str, prefix: str) -> None:
        self.board = Board()
        self.changed = Condition()
        self.trouble = ""
        self._link = link
        self._head = head
        self._pattern = f"{head}{prefix}*"
        self._tried = False
        self._closed = False
        self._line: Line | None = None
        Thread(target=self._run, name="ortet-valkey-hear", daemon=True).start()

    def token(self) -> int:
        """Before the first try is over it is not known whether what happens now will be heard."""
        with self.changed:
            self.changed.wait_for(lambda: self._tried)
            return self.board.now

    def stop(self) -> None:
        with self.changed:
            self._closed = True
            self.changed.notify_all()
            if self._line is not None:
                self._line.close()

    def _run(self) -> None:
        while not self._closed:
            try:
                self._hear()
            except self._link.troubles as error:
                self.trouble = str(error) or type(error).__name__
            with self.changed:
                line, self._line = self._line, None
                self._tried = True
                self.board.mark_all()
                self.changed.notify_all()
                if not self._closed and line is None:
                    self.changed.wait_for(lambda: self._closed, _LOOK)
            if line is not None:
                line.close()

    def _hear(self) -> None:
        line = self._link.connect()
        try:
            line.call("PSUBSCRIBE", self._pattern)
        except BaseException:
            line.close()
            raise
        with self.changed:
            self._line, self.trouble = line, ""
            if self._tried:
                self.board.mark_all()  # what was told before was not heard
            self._tried = True
            self.changed.notify_all()
        while not self._closed:
            told = line.heard(_QUIET)
            if told is None:
                line.send("PING")
                told = line.heard(_ANSWER)
                if told is None:
                    raise TimeoutError("the server does not answer")
            if told[0] == b"pmessage":
                topic = told[2].decode("utf-8", "replace")[len(self._head) :]
                with self.changed:
                    self.board.mark(topic)
                    self.changed.notify_all()


_POSTS: dict[tuple[Address, str], _Post] = {}
"""Of this process: a server opens a hub for each session, and all of them hear the same."""
_lock = RLock()  # re-entered when one is collected while another joins


def _join(address: Address, head: str) -> _Post:
    with _lock:
        post = _POSTS.get((address, head))
        if post is None:
            post = _POSTS[address, head] = _Post(address, head)
        post.users += 1
        return post


def _leave(post: _Post) -> None:
    if post.pid != os.getpid():
        return
    with _lock:
        post.users -= 1
        if post.users:
            return
        _POSTS.pop(post.where, None)
    post.stop()


def _anew() -> None:
    """In a child: what was shared is its parent's, and so may the lock be."""
    global _lock
    _lock = RLock()
    _POSTS.clear()


os.register_at_fork(after_in_child=_anew)
