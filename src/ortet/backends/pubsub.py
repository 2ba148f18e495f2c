"""The common part of signals that use a publish/subscribe server.

All signals of a process with the same transport share one publishing thread and, for each prefix,
one listening thread and connection.
"""

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
"""While the server is unreachable, listeners are woken after this many seconds."""
_PUBLISH_BURST = 4
"""Publications that may exceed the rate after a pause, to wake listeners at once."""
_FLUSH_TIMEOUT_SECONDS = 2.0
"""Seconds that `close` waits for pending publications."""


class Publisher(Protocol):
    """A connection that sends notifications."""

    def publish(self, topics: list[str]) -> None: ...

    def close(self) -> None: ...


class Subscriber(Protocol):
    """A connection that receives notifications."""

    def receive(self) -> list[str] | None:
        """Return the next topics; an empty list after about a second; None if any may have changed.

        Raise one of the transport's connection_errors if the server does not answer.
        """

    def wake(self) -> None:
        """Wake the thread that waits in `receive`."""

    def close(self) -> None: ...


class PubSubTransport(Hashable, Protocol):
    """A server, and the namespace of a store on it.

    - `has_prefix_filter`: a subscriber can be limited to topics with a prefix.
    - `is_echo_free`: the server does not deliver a process's own notifications back to it.
    - `publish_interval`: the minimum seconds between publications under load.
    """

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
    """A signal through a publish/subscribe server.

    `notify` returns at once; a thread publishes. A lost connection is retried every second. Until
    it is back, listeners are woken every second, so that nothing is missed.
    """

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
    def transport_name(self) -> str:
        """The name of the server's kind, such as "valkey"."""
        return self._transport.name

    @property
    def last_error(self) -> str:
        """The reason why the server is unreachable; "" if it is connected."""
        return self._channel().listener(self._prefix).last_error

    def close(self) -> None:
        if self._pid == os.getpid():
            self._shared_channel.flush()
            self._finalizer()

    def _channel(self) -> _PubSubChannel:
        if self._pid != os.getpid():  # after a fork, threads and connections belong to the parent
            self._pid = os.getpid()
            self._shared_channel = _acquire_channel(self._transport)
            self._finalizer = weakref.finalize(self, _release_channel, self._shared_channel)
        return self._shared_channel


class _PubSubChannel:
    """The state that all signals of one process and transport share."""

    def __init__(self, transport: PubSubTransport) -> None:
        self.pid = os.getpid()
        self.transport = transport
        self.users = 0
        self._listeners: dict[str, _TopicListener] = {}
        self._condition = Condition()
        self._pending_topics: dict[str, None] = {}
        self._is_publishing = False
        self._has_failed = False  # the last publication failed
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
        listener = self._listeners.get(part)
        if listener is None:
            with self._condition:
                if part not in self._listeners:
                    self._listeners[part] = _TopicListener(self.transport, part)
                listener = self._listeners[part]
        return listener

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
            for _ in range(2):  # an idle connection may have been closed by the server
                try:
                    speaker = speaker or self.transport.connect_publisher()
                    speaker.publish(topics)
                    break
                except self.transport.connection_errors:
                    if speaker is not None:
                        speaker.close()
                    speaker = None
            if speaker is None:  # The topics are lost, which is allowed for a hint.
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
    """The versions of topics with one prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.versions = TopicVersions()
        self.changed = Condition()


class _TopicListener:
    """One subscriber connection, shared by all signals whose topics it receives."""

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
        slot = self._slots.get(prefix)
        if slot is None:
            with self._condition:
                slot = self._slots.setdefault(prefix, _SubscriberSlot(prefix))
        return slot

    def token(self, prefix: str) -> int:
        """Return the current token.

        Wait for the first connection attempt: before it, it is unknown if new notifications will
        arrive.
        """
        place = self.slot(prefix)
        with self._condition:
            self._condition.wait_for(lambda: self._has_tried)
        with place.changed:
            return place.versions.current

    def deliver(self, topics: Iterable[str] | None) -> None:
        """Record notified topics and wake the waiting threads. None: any topic may have changed."""
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
            self.deliver(None)  # notifications during the disconnection were missed
        while not self._closed:
            topics = hearer.receive()
            if topics is None or topics:
                self.deliver(topics)


_CHANNELS: dict[PubSubTransport, _PubSubChannel] = {}
"""The channels of this process. A server opens a hub per session; all hubs share a channel."""
_lock = RLock()  # re-entrant: a finalizer may run while a channel is acquired


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
    """Discard the channels in a forked child: they, and perhaps the lock, belong to the parent."""
    global _lock
    _lock = RLock()
    _CHANNELS.clear()


os.register_at_fork(after_in_child=_reset_in_child)
