"""Signals between the threads of a process, and between the processes of a host."""

from __future__ import annotations

import os
import select
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Condition
from typing import TYPE_CHECKING

from ortet.backends.base import Signal
from ortet.backends.keys import check_name
from ortet.errors import Invalid, Unavailable
from ortet.ids import Random

if TYPE_CHECKING:
    import socket

_SUN_PATH = 100
"""A socket address holds 108 bytes on Linux, and 104 elsewhere."""

_TICK_NS = 50_000_000


class TopicVersions:
    """The version at which each topic was last notified, on a counter that all topics share.

    Only the newest `max_topics` topics are stored. Any other topic counts as changed if a topic was
    evicted after the token.
    """

    def __init__(self, max_topics: int = 10_000) -> None:
        self.current = 0
        self._versions: OrderedDict[str, int] = OrderedDict()  # newest at the end
        self._max_topics = max_topics
        self._evicted_version = 0
        self._all_version = 0

    def mark(self, topic: str) -> None:
        """Record a notification of `topic`."""
        self.current += 1
        self._versions[topic] = self.current
        self._versions.move_to_end(topic)
        if len(self._versions) > self._max_topics:
            self._evicted_version = self._versions.popitem(last=False)[1]

    def mark_all(self) -> None:
        """Mark every topic as changed, because a notification was lost."""
        self.current += 1
        self._all_version = self.current

    def has_changed(self, topic: str, token: int) -> bool:
        """Return True if `topic` was, or may have been, notified after `token`."""
        return self._versions.get(topic, self._evicted_version) > token or self._all_version > token

    def changed_topics(self, token: int) -> set[str] | None:
        """Return the topics notified after `token`; None if any may have been."""
        if self._all_version > token or self._evicted_version > token:
            return None
        topics = set()
        for topic in reversed(self._versions):
            if self._versions[topic] <= token:
                break
            topics.add(topic)
        return topics


class ProcessSignal(Signal):
    """A signal between the threads of one process."""

    def __init__(self) -> None:
        self._versions = TopicVersions()
        self._changed = Condition()

    def notify(self, topic: str) -> None:
        with self._changed:
            self._versions.mark(check_name(topic))
            self._changed.notify_all()

    def token(self, topic: str) -> int:
        check_name(topic)
        with self._changed:
            return self._versions.current

    def wait(self, topic: str, token: int, timeout: float) -> bool:
        check_name(topic)
        with self._changed:
            return self._changed.wait_for(lambda: self._versions.has_changed(topic, token), timeout)

    def wait_any(self, token: int | None, timeout: float) -> tuple[int, set[str] | None]:
        with self._changed:
            now = self._versions.current if token is None else token
            if token is not None:
                self._changed.wait_for(lambda: self._versions.current > now, timeout)
            return self._versions.current, self._versions.changed_topics(now)


class HostSignal(Signal):
    """A signal between the processes of one host. Each listener has a datagram socket.

    The sockets are in `directory`. A process that only notifies holds no resource. The first
    `token` or `wait` creates the socket of a listener. A sender deletes the socket of a dead
    listener. If the queue of a listener is full, the sender touches its socket file. The listener
    then treats every topic as notified. The file name of a socket contains its topic prefix, if
    any.
    """

    def __init__(self, directory: Path, random: Random = os.urandom, *, prefix: str = "") -> None:
        self._directory = Path(os.path.abspath(directory))
        self._directory_name = os.fspath(self._directory)
        self._cached_listing: tuple[int, list[str]] = (
            -1,
            [],
        )  # mtime of the directory, and its sockets
        self._random = random
        self._prefix = prefix
        self._versions = TopicVersions()
        self._changed = Condition()
        self._reading = False
        self._wakeup_fds: set[int] = set()  # pipes that wake the threads sleeping on the socket
        self._listener: SignalSocket | None = None
        self._closed = False

    def notify(self, topic: str) -> None:
        data = check_name(topic).encode()
        names = [name for name in self._names() if _is_for(name, topic)]
        if names:
            import socket  # noqa: PLC0415 - a command that does not need it starts faster

            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                for name in names:
                    with suppress(OSError):  # gone, or of another user: a hint may be lost
                        _send(sender, self._directory / name, data)

    def _names(self) -> list[str]:
        """Return the names of the listening sockets, cached until the directory changes."""
        try:
            changed = os.stat(self._directory_name).st_mtime_ns
            if changed != self._cached_listing[0]:
                names = [
                    name for name in os.listdir(self._directory_name) if name.endswith(".sock")
                ]
                # a socket created within the same clock tick would not change the mtime
                settled = time.time_ns() - changed > _TICK_NS
                self._cached_listing = changed if settled else -1, names
        except OSError:
            return []  # no process can listen there
        return self._cached_listing[1]

    def token(self, topic: str) -> int:
        check_name(topic)
        with self._changed:
            self._read(self._ensure_listener())
            return self._versions.current

    def wait(self, topic: str, token: int, timeout: float) -> bool:
        check_name(topic)
        deadline = time.monotonic() + timeout
        with self._changed:
            listener = self._ensure_listener()
            self._read(listener)
            while not self._versions.has_changed(topic, token):
                rest = deadline - time.monotonic()
                if rest <= 0:
                    return False
                self._sleep(listener, rest)
                if not self._versions.has_changed(
                    topic, token
                ):  # unless another thread has read the notification
                    self._read(listener)
            return True

    def wait_any(self, token: int | None, timeout: float) -> tuple[int, set[str] | None]:
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                self._read(self._ensure_listener())
                now = self._versions.current if token is None else token
                rest = deadline - time.monotonic()
                if token is None or self._versions.current > now or rest <= 0:
                    return self._versions.current, self._versions.changed_topics(now)
                self._sleep(self._ensure_listener(), rest)

    def with_prefix(self, prefix: str) -> Signal:
        if not prefix.isalnum():
            raise Invalid("bad_topic", f"{prefix!r}: give a word of letters and digits")
        return HostSignal(self._directory, self._random, prefix=prefix)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            if self._listener is not None:
                self._listener.close()
                self._listener = None

    def _ensure_listener(self) -> SignalSocket:
        if self._closed:  # another thread may still wait; a new socket would never be closed
            raise Invalid("closed", "the signal was closed: open the store again")
        if self._listener is None or self._listener.pid != os.getpid():
            if self._listener is not None:
                self._listener.close_inherited()  # its file name belongs to the parent, or is gone
                self._reading = False
                self._wakeup_fds.clear()
                self._versions.mark_all()
            name = self._random(16).hex()
            self._listener = SignalSocket(self._directory, f"{name}.{self._prefix}".rstrip("."))
        return self._listener

    def _read(self, listener: SignalSocket) -> None:
        topics, lost = listener.drain()
        for topic in topics:
            self._versions.mark(topic)
        if lost:
            self._versions.mark_all()
        if topics or lost:
            self._changed.notify_all()
            # the notifications were read, so polling the socket would not wake them
            while self._wakeup_fds:
                os.write(self._wakeup_fds.pop(), b"!")

    def _sleep(self, listener: SignalSocket, timeout: float) -> None:
        """Wait for a notification.

        One thread polls the socket; the others wait on the condition.
        """
        if self._reading:
            self._changed.wait(timeout)
            return
        rung, bell = os.pipe()
        self._reading = True
        self._wakeup_fds.add(bell)
        self._changed.release()
        try:
            listener.sleep(timeout, rung)
        finally:
            self._changed.acquire()
            self._reading = False
            self._wakeup_fds.discard(bell)
            os.close(rung)
            os.close(bell)
            self._changed.notify_all()  # one of the waiting threads takes over polling


class SignalSocket:
    """A bound datagram socket with a name in the directory."""

    def __init__(self, directory: Path, name: str) -> None:
        import socket  # noqa: PLC0415 - a command that does not need it starts faster

        self.pid = os.getpid()
        self._path = directory / f"{name}.sock"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            unborn = directory / f"{name}.new"
            with _address(unborn) as address:
                self._socket.bind(address)
            # Senders delete a socket that refuses, and an unbound socket refuses. So it gets the
            # name that senders look for only now.
            unborn.rename(self._path)
            self._touched = os.stat(self._path).st_mtime_ns
        except OSError as error:
            self._socket.close()
            raise Unavailable(
                "no_signal", f"cannot listen in {directory} ({error}): check its permissions"
            ) from error

    def drain(self) -> tuple[list[str], bool]:
        """Return the queued topics, and True if the queue has overflowed."""
        topics = []
        with suppress(BlockingIOError):
            while True:
                topics.append(self._socket.recv(1 << 16).decode("utf-8", "replace"))
        try:
            touched = os.stat(self._path).st_mtime_ns
        except FileNotFoundError:
            # the file was deleted, so senders cannot reach it: the next wait creates another socket
            self.pid = 0
            return topics, True
        lost, self._touched = touched != self._touched, touched
        return topics, lost

    def sleep(self, timeout: float, wakeup_fd: int) -> None:
        """Wait until a datagram or a byte on `wakeup_fd` arrives."""
        poll = select.poll()  # select() does not support descriptors above 1023
        poll.register(self._socket, select.POLLIN)
        poll.register(wakeup_fd, select.POLLIN)
        poll.poll(timeout * 1000)

    def close_inherited(self) -> None:
        """Close the descriptor in a forked child, and keep the parent's socket file."""
        self._socket.close()

    def close(self) -> None:
        """Delete the socket file and close the socket."""
        self._path.unlink(missing_ok=True)
        self._socket.close()


def _is_for(name: str, topic: str) -> bool:
    """Return True if a socket receives `topic`: NAME.PREFIX.sock only topics with that prefix."""
    parts = name.split(".")
    return len(parts) < 3 or topic.startswith(parts[1])


def _send(sender: socket.socket, path: Path, data: bytes) -> None:
    with _address(path) as address:
        try:
            sender.sendto(data, address)
        except ConnectionRefusedError:
            path.unlink()  # its listener is dead
        except BlockingIOError:
            # Touch first, then send again. If the queue is still full, the listener has yet to
            # drain it and will then see the touch. Otherwise it gets the datagram.
            # the kernel's own timestamp has only tick resolution
            os.utime(path, ns=(0, time.time_ns()))
            sender.sendto(data, address)


@contextmanager
def _address(path: Path) -> Iterator[str]:
    """Yield the path as a socket address, or a shorter equivalent path."""
    if len(os.fsencode(path)) <= _SUN_PATH:
        yield str(path)
        return
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{path.name}"
    finally:
        os.close(fd)
