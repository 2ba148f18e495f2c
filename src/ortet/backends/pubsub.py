"""Signal through a server that all hosts of a store reach: what its kinds have in common. All of a
process that hear or tell of one space share a thread for each, and their connections."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Hashable, Iterable
from threading import Condition, RLock, Thread
from typing import Protocol

from ortet.backends.base import Signal
from ortet.backends.keys import check_name
from ortet.backends.local.signal import Board
from ortet.errors import Invalid

LOOK = 1.0
"""Seconds after which anything may have happened, while the server cannot be heard."""
_AT_ONCE = 4
"""Tellings that need not keep the pace, after a pause: somebody waits for each of them."""
_LAST = 2.0
"""Seconds that closing waits for what was still to be told."""


class Speaker(Protocol):
    def tell(self, topics: list[str]) -> None: ...

    def close(self) -> None: ...


class Hearer(Protocol):
    def heard(self) -> list[str] | None:
        """The next topics, none of them after about a second; None: any may have been. Raises one
        of the wire's troubles when the server does not answer."""

    def wake(self) -> None:
        """Whoever waits in `heard` in another thread."""

    def close(self) -> None: ...


class Wire(Hashable, Protocol):
    """A server and the space of a store there. `narrows`: a hearer can be for topics that begin
    with a word. `is_deaf`: it does not hear what this process itself tells. `pace`: seconds between
    one telling and the next, where there are many."""

    @property
    def name(self) -> str: ...
    @property
    def narrows(self) -> bool: ...
    @property
    def is_deaf(self) -> bool: ...
    @property
    def pace(self) -> float: ...
    @property
    def troubles(self) -> tuple[type[Exception], ...]: ...

    def speaker(self) -> Speaker: ...

    def hearer(self, prefix: str) -> Hearer: ...


class PostSignal(Signal):
    """Telling costs its caller nothing: a thread does it. A server that is gone is tried again each
    second, and until then who waits is woken each second: it is slower, and nothing is missed."""

    def __init__(self, wire: Wire, *, prefix: str = "") -> None:
        self._wire = wire
        self._prefix = prefix
        self._pid = 0
        self._post()

    def notify(self, topic: str) -> None:
        self._post().tell(check_name(topic))

    def token(self, topic: str) -> int:
        check_name(topic)
        return self._post().ear(self._prefix).token(self._prefix)

    def wait(self, topic: str, token: int, timeout: float) -> bool:
        check_name(topic)
        place = self._post().ear(self._prefix).place(self._prefix)
        with place.changed:
            return place.changed.wait_for(lambda: place.board.since(topic, token), timeout)

    def news(self, token: int | None, timeout: float) -> tuple[int, set[str] | None]:
        ear = self._post().ear(self._prefix)
        now, place = ear.token(self._prefix) if token is None else token, ear.place(self._prefix)
        with place.changed:
            if token is not None:
                place.changed.wait_for(lambda: place.board.now > now, timeout)
            return place.board.now, place.board.topics(now)

    def narrowed(self, prefix: str) -> Signal:
        if not prefix.isalnum():
            raise Invalid("bad_topic", f"{prefix!r}: give a word of letters and digits")
        return PostSignal(self._wire, prefix=prefix)

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
            self._shared = _join(self._wire)
            self._leave = weakref.finalize(self, _leave, self._shared)
        return self._shared


class _Post:
    """What the signals of one process and space have in common."""

    def __init__(self, wire: Wire) -> None:
        self.pid = os.getpid()
        self.wire = wire
        self.users = 0
        self._ears: dict[str, _Ear] = {}
        self._some = Condition()
        self._topics: dict[str, None] = {}
        self._telling = False
        self._lost = False  # what was told last
        self._thread: Thread | None = None
        self._closed = False

    def tell(self, topic: str) -> None:
        if self.wire.is_deaf:
            for ear in list(self._ears.values()):
                ear.hear([topic])
        with self._some:
            self._topics[topic] = None
            if self._thread is None:
                name = f"ortet-{self.wire.name}-tell"
                self._thread = Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
            self._some.notify_all()

    def flush(self) -> None:
        with self._some:
            self._some.wait_for(lambda: self._lost or not (self._topics or self._telling), _LAST)

    def ear(self, prefix: str) -> _Ear:
        part = prefix if self.wire.narrows else ""
        found = self._ears.get(part)
        if found is None:
            with self._some:
                if part not in self._ears:
                    self._ears[part] = _Ear(self.wire, part)
                found = self._ears[part]
        return found

    def stop(self) -> None:
        with self._some:
            self._closed = True
            self._some.notify_all()
            ears = list(self._ears.values())
        for ear in ears:
            ear.stop()

    def _run(self) -> None:
        speaker: Speaker | None = None
        pace, due = self.wire.pace, 0.0
        while topics := self._next():
            for _ in range(2):  # a connection that was idle may be of a server that is gone
                try:
                    speaker = speaker or self.wire.speaker()
                    speaker.tell(topics)
                    break
                except self.wire.troubles:
                    if speaker is not None:
                        speaker.close()
                    speaker = None
            if speaker is None:  # lost, which a hint may be
                with self._some:
                    self._lost, self._telling = True, False
                    self._some.notify_all()
                    self._some.wait_for(lambda: self._closed, LOOK)
            else:
                self._lost = False
                now = time.monotonic()
                due = max(due, now - _AT_ONCE * pace) + pace
                time.sleep(max(0.0, due - now))
        if speaker is not None:
            speaker.close()

    def _next(self) -> list[str]:
        with self._some:
            self._telling = False
            self._some.notify_all()
            self._some.wait_for(lambda: self._topics or self._closed)
            topics, self._topics = list(self._topics), {}
            self._telling = bool(topics)
            return topics


class _Place:
    """What was heard of topics that begin with a word."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.board = Board()
        self.changed = Condition()


class _Ear:
    """One connection, for all who wait for some of the topics it hears."""

    def __init__(self, wire: Wire, prefix: str) -> None:
        self.trouble = ""
        self._wire = wire
        self._prefix = prefix
        self._places: dict[str, _Place] = {}
        self._state = Condition()
        self._tried = False
        self._closed = False
        self._hearer: Hearer | None = None
        Thread(target=self._run, name=f"ortet-{wire.name}-hear", daemon=True).start()

    def place(self, prefix: str) -> _Place:
        found = self._places.get(prefix)
        if found is None:
            with self._state:
                found = self._places.setdefault(prefix, _Place(prefix))
        return found

    def token(self, prefix: str) -> int:
        """Before the first try is over it is not known whether what happens now will be heard."""
        place = self.place(prefix)
        with self._state:
            self._state.wait_for(lambda: self._tried)
        with place.changed:
            return place.board.now

    def hear(self, topics: Iterable[str] | None) -> None:
        """None: any may have been told."""
        for place in list(self._places.values()):
            ours = topics and [topic for topic in topics if topic.startswith(place.prefix)]
            if ours or topics is None:
                with place.changed:
                    for topic in ours or ():
                        place.board.mark(topic)
                    if topics is None:
                        place.board.mark_all()
                    place.changed.notify_all()

    def stop(self) -> None:
        with self._state:
            self._closed = True
            self._state.notify_all()
            if self._hearer is not None:
                self._hearer.wake()

    def _run(self) -> None:
        while not self._closed:
            try:
                self._listen()
            except self._wire.troubles as error:
                self.trouble = str(error) or type(error).__name__
            with self._state:
                hearer, self._hearer = self._hearer, None
                self._tried = True
                self._state.notify_all()
            self.hear(None)
            if hearer is not None:
                hearer.close()
                continue
            with self._state:
                self._state.wait_for(lambda: self._closed, LOOK)

    def _listen(self) -> None:
        hearer = self._wire.hearer(self._prefix)
        with self._state:
            self._hearer, self.trouble = hearer, ""
            again, self._tried = self._tried, True
            self._state.notify_all()
        if again:
            self.hear(None)  # what was told before was not heard
        while not self._closed:
            topics = hearer.heard()
            if topics is None or topics:
                self.hear(topics)


_POSTS: dict[Wire, _Post] = {}
"""Of this process: a server opens a hub for each session, and all of them hear the same."""
_lock = RLock()  # re-entered when one is collected while another joins


def _join(wire: Wire) -> _Post:
    with _lock:
        post = _POSTS.get(wire)
        if post is None:
            post = _POSTS[wire] = _Post(wire)
        post.users += 1
        return post


def _leave(post: _Post) -> None:
    if post.pid != os.getpid():
        return
    with _lock:
        post.users -= 1
        if post.users:
            return
        _POSTS.pop(post.wire, None)
    post.stop()


def _anew() -> None:
    """In a child: what was shared is its parent's, and so may the lock be."""
    global _lock
    _lock = RLock()
    _POSTS.clear()


os.register_at_fork(after_in_child=_anew)
