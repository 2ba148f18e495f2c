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
from ortet.backends.local.signal import TopicVersions
from ortet.errors import Invalid

RECONNECT_SECONDS = 1.0
"""Seconds after which anything may have happened, while the server cannot be heard."""
_PUBLISH_BURST = 4
"""Tellings that need not keep the pace, after a pause: somebody waits for each of them."""
_FLUSH_TIMEOUT_SECONDS = 2.0
"""Seconds that closing waits for what was still to be told."""


class Publisher(Protocol):
    def publish(self, topics: list[str]) -> None: ...

    def close(self) -> None: ...


class Subscriber(Protocol):
    def receive(self) -> list[str] | None:
        """The next topics, none of them after about a second; None: any may have been. Raises one
        of the wire's troubles when the server does not answer."""

    def wake(self) -> None:
        """Whoever waits in `heard` in another thread."""

    def close(self) -> None: ...


class PubSubTransport(Hashable, Protocol):
    """A server and the space of a store there. `narrows`: a hearer can be for topics that begin
    with a word. `is_deaf`: it does not hear what this process itself tells. `pace`: seconds between
    one telling and the next, where there are many."""

    @property
    def name(self) -> str: ...
    @property
    def has_prefix_filter(self) -> bool: ...
    @property
    def is_echo_free(self) -> bool: ...
    @property
    def publish_interval(self) -> float: ...
    @property
    def connection_errors(self) -> tuple[type[Exception], ...]: ...

    def connect_publisher(self) -> Publisher: ...

    def connect_subscriber(self, prefix: str) -> Subscriber: ...


class PubSubSignal(Signal):
    """Telling costs its caller nothing: a thread does it. A server that is gone is tried again each
    second, and until then who waits is woken each second: it is slower, and nothing is missed."""

    def __init__(self, transport: PubSubTransport, *, prefix: str = "") -> None:
        self._transport = transport
        self._prefix = prefix
        self._pid = 0
        self._channel()

    def notify(self, topic: str) -> None:
        self._channel().publish(check_name(topic))

    def token(self, topic: str) -> int:
        check_name(topic)
        return self._channel().listener(self._prefix).token(self._prefix)

    def wait(self, topic: str, token: int, timeout: float) -> bool:
        check_name(topic)
        place = self._channel().listener(self._prefix).slot(self._prefix)
        with place.changed:
            return place.changed.wait_for(lambda: place.versions.has_changed(topic, token), timeout)

    def wait_any(self, token: int | None, timeout: float) -> tuple[int, set[str] | None]:
        ear = self._channel().listener(self._prefix)
        now, place = ear.token(self._prefix) if token is None else token, ear.slot(self._prefix)
        with place.changed:
            if token is not None:
                place.changed.wait_for(lambda: place.versions.current > now, timeout)
            return place.versions.current, place.versions.changed_topics(now)

    def with_prefix(self, prefix: str) -> Signal:
        if not prefix.isalnum():
            raise Invalid("bad_topic", f"{prefix!r}: give a word of letters and digits")
        return PubSubSignal(self._transport, prefix=prefix)

    @property
    def last_error(self) -> str:
        """Why the server is not heard; "" when it is."""
        return self._channel().listener(self._prefix).last_error

    def close(self) -> None:
        if self._pid == os.getpid():
            self._shared_channel.flush()
            self._finalizer()

    def _channel(self) -> _PubSubChannel:
        if self._pid != os.getpid():  # threads and connections stay with the parent
            self._pid = os.getpid()
            self._shared_channel = _acquire_channel(self._transport)
            self._finalizer = weakref.finalize(self, _release_channel, self._shared_channel)
        return self._shared_channel


class _PubSubChannel:
    """What the signals of one process and space have in common."""

    def __init__(self, transport: PubSubTransport) -> None:
        self.pid = os.getpid()
        self.transport = transport
        self.users = 0
        self._listeners: dict[str, _TopicListener] = {}
        self._condition = Condition()
        self._pending_topics: dict[str, None] = {}
        self._is_publishing = False
        self._has_failed = False  # what was told last
        self._thread: Thread | None = None
        self._closed = False

    def publish(self, topic: str) -> None:
        if self.transport.is_echo_free:
            for ear in list(self._listeners.values()):
                ear.deliver([topic])
        with self._condition:
            self._pending_topics[topic] = None
            if self._thread is None:
                name = f"ortet-{self.transport.name}-tell"
                self._thread = Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
            self._condition.notify_all()

    def flush(self) -> None:
        with self._condition:
            self._condition.wait_for(
                lambda: self._has_failed or not (self._pending_topics or self._is_publishing),
                _FLUSH_TIMEOUT_SECONDS,
            )

    def listener(self, prefix: str) -> _TopicListener:
        part = prefix if self.transport.has_prefix_filter else ""
        found = self._listeners.get(part)
        if found is None:
            with self._condition:
                if part not in self._listeners:
                    self._listeners[part] = _TopicListener(self.transport, part)
                found = self._listeners[part]
        return found

    def stop(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify_all()
            ears = list(self._listeners.values())
        for ear in ears:
            ear.stop()

    def _run(self) -> None:
        speaker: Publisher | None = None
        pace, due = self.transport.publish_interval, 0.0
        while topics := self._next():
            for _ in range(2):  # a connection that was idle may be of a server that is gone
                try:
                    speaker = speaker or self.transport.connect_publisher()
                    speaker.publish(topics)
                    break
                except self.transport.connection_errors:
                    if speaker is not None:
                        speaker.close()
                    speaker = None
            if speaker is None:  # lost, which a hint may be
                with self._condition:
                    self._has_failed, self._is_publishing = True, False
                    self._condition.notify_all()
                    self._condition.wait_for(lambda: self._closed, RECONNECT_SECONDS)
            else:
                self._has_failed = False
                now = time.monotonic()
                due = max(due, now - _PUBLISH_BURST * pace) + pace
                time.sleep(max(0.0, due - now))
        if speaker is not None:
            speaker.close()

    def _next(self) -> list[str]:
        with self._condition:
            self._is_publishing = False
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._pending_topics or self._closed)
            topics, self._pending_topics = list(self._pending_topics), {}
            self._is_publishing = bool(topics)
            return topics


class _SubscriberSlot:
    """What was heard of topics that begin with a word."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.versions = TopicVersions()
        self.changed = Condition()


class _TopicListener:
    """One connection, for all who wait for some of the topics it hears."""

    def __init__(self, transport: PubSubTransport, prefix: str) -> None:
        self.last_error = ""
        self._transport = transport
        self._prefix = prefix
        self._slots: dict[str, _SubscriberSlot] = {}
        self._condition = Condition()
        self._has_tried = False
        self._closed = False
        self._subscriber: Subscriber | None = None
        Thread(target=self._run, name=f"ortet-{transport.name}-hear", daemon=True).start()

    def slot(self, prefix: str) -> _SubscriberSlot:
        found = self._slots.get(prefix)
        if found is None:
            with self._condition:
                found = self._slots.setdefault(prefix, _SubscriberSlot(prefix))
        return found

    def token(self, prefix: str) -> int:
        """Before the first try is over it is not known whether what happens now will be heard."""
        place = self.slot(prefix)
        with self._condition:
            self._condition.wait_for(lambda: self._has_tried)
        with place.changed:
            return place.versions.current

    def deliver(self, topics: Iterable[str] | None) -> None:
        """None: any may have been told."""
        for place in list(self._slots.values()):
            ours = topics and [topic for topic in topics if topic.startswith(place.prefix)]
            if ours or topics is None:
                with place.changed:
                    for topic in ours or ():
                        place.versions.mark(topic)
                    if topics is None:
                        place.versions.mark_all()
                    place.changed.notify_all()

    def stop(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify_all()
            if self._subscriber is not None:
                self._subscriber.wake()

    def _run(self) -> None:
        while not self._closed:
            try:
                self._listen()
            except self._transport.connection_errors as error:
                self.last_error = str(error) or type(error).__name__
            with self._condition:
                hearer, self._subscriber = self._subscriber, None
                self._has_tried = True
                self._condition.notify_all()
            self.deliver(None)
            if hearer is not None:
                hearer.close()
                continue
            with self._condition:
                self._condition.wait_for(lambda: self._closed, RECONNECT_SECONDS)

    def _listen(self) -> None:
        hearer = self._transport.connect_subscriber(self._prefix)
        with self._condition:
            self._subscriber, self.last_error = hearer, ""
            again, self._has_tried = self._has_tried, True
            self._condition.notify_all()
        if again:
            self.deliver(None)  # what was told before was not heard
        while not self._closed:
            topics = hearer.receive()
            if topics is None or topics:
                self.deliver(topics)


_CHANNELS: dict[PubSubTransport, _PubSubChannel] = {}
"""Of this process: a server opens a hub for each session, and all of them hear the same."""
_lock = RLock()  # re-entered when one is collected while another joins


def _acquire_channel(transport: PubSubTransport) -> _PubSubChannel:
    with _lock:
        post = _CHANNELS.get(transport)
        if post is None:
            post = _CHANNELS[transport] = _PubSubChannel(transport)
        post.users += 1
        return post


def _release_channel(channel: _PubSubChannel) -> None:
    if channel.pid != os.getpid():
        return
    with _lock:
        channel.users -= 1
        if channel.users:
            return
        _CHANNELS.pop(channel.transport, None)
    channel.stop()


def _reset_in_child() -> None:
    """In a child: what was shared is its parent's, and so may the lock be."""
    global _lock
    _lock = RLock()
    _CHANNELS.clear()


os.register_at_fork(after_in_child=_reset_in_child)
