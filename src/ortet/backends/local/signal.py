"""Signals inside one process and between the processes of one host."""

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
"""A socket's address holds 108 bytes on Linux, 104 elsewhere."""

_TICK_NS = 50_000_000


class TopicVersions:
    """When each topic was last notified, on a count that all topics share. Of `most` topics: what
    was notified before those may have been again, as far as anybody can tell."""

    def __init__(self, max_topics: int = 10_000) -> None:
        self.current = 0
        self._versions: OrderedDict[str, int] = OrderedDict()  # the latest at the end
        self._max_topics = max_topics
        self._evicted_version = 0
        self._all_version = 0

    def mark(self, topic: str) -> None:
        self.current += 1
        self._versions[topic] = self.current
        self._versions.move_to_end(topic)
        if len(self._versions) > self._max_topics:
            self._evicted_version = self._versions.popitem(last=False)[1]

    def mark_all(self) -> None:
        """Something was lost, so any topic may have changed."""
        self.current += 1
        self._all_version = self.current

    def has_changed(self, topic: str, token: int) -> bool:
        return self._versions.get(topic, self._evicted_version) > token or self._all_version > token

    def changed_topics(self, token: int) -> set[str] | None:
        """Those notified after `token`; None: any may have been."""
        if self._all_version > token or self._evicted_version > token:
            return None
        found = set()
        for topic in reversed(self._versions):
            if self._versions[topic] <= token:
                break
            found.add(topic)
        return found


class ProcessSignal(Signal):
    """Between the threads of one process."""

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
    """Between the processes of one host: each listener has a datagram socket in `directory`.

    A process that only notifies holds nothing. A listener's socket is made by its first `token` or
    `wait`; those of the dead are removed by whoever next sends to them. When a listener's queue is
    full, the sender touches its socket, and the listener then takes every topic as notified. The
    name of a socket says with which word the topics begin that it is for, if not all are.
    """

    def __init__(self, directory: Path, random: Random = os.urandom, *, prefix: str = "") -> None:
        self._directory = Path(os.path.abspath(directory))
        self._directory_name = os.fspath(self._directory)
        self._cached_listing: tuple[int, list[str]] = (
            -1,
            [],
        )  # when the directory changed, what was in it
        self._random = random
        self._prefix = prefix
        self._versions = TopicVersions()
        self._changed = Condition()
        self._reading = False
        self._wakeup_fds: set[int] = set()  # of who sleeps on the socket, until it is rung
        self._listener: SignalSocket | None = None

    def notify(self, topic: str) -> None:
        data = check_name(topic).encode()
        names = [name for name in self._names() if _is_for(name, topic)]
        if names:
            import socket  # noqa: PLC0415 - a command that does not need it starts faster

            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                for name in names:
                    with suppress(OSError):  # gone, or another user's: a hint may be lost
                        _send(sender, self._directory / name, data)

    def _names(self) -> list[str]:
        """Who listens; looked up again only when the directory has changed, or may have since."""
        try:
            changed = os.stat(self._directory_name).st_mtime_ns
            if changed != self._cached_listing[0]:
                names = [
                    name for name in os.listdir(self._directory_name) if name.endswith(".sock")
                ]
                # a name that comes within the same tick of the clock would not show
                settled = time.time_ns() - changed > _TICK_NS
                self._cached_listing = changed if settled else -1, names
        except OSError:
            return []  # nobody can be listening there
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
                ):  # unless another thread has read it
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
            if self._listener is not None:
                self._listener.close()
                self._listener = None

    def _ensure_listener(self) -> SignalSocket:
        if self._listener is None or self._listener.pid != os.getpid():
            if self._listener is not None:
                self._listener.close_inherited()  # its name is our parent's, or gone
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
            while self._wakeup_fds:  # what they sleep for has been read, and comes no more
                os.write(self._wakeup_fds.pop(), b"!")

    def _sleep(self, listener: SignalSocket, timeout: float) -> None:
        """One thread sleeps on the socket for all; the others on the condition."""
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
            self._changed.notify_all()  # one of those who still wait takes over


class SignalSocket:
    """A bound socket with a name in the directory."""

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
            # A socket refuses until it is bound, and a sender removes what refuses: only now does
            # it get the name that senders look for.
            unborn.rename(self._path)
            self._touched = os.stat(self._path).st_mtime_ns
        except OSError as error:
            self._socket.close()
            raise Unavailable(
                "no_signal", f"cannot listen in {directory} ({error}): check its permissions"
            ) from error

    def drain(self) -> tuple[list[str], bool]:
        """Topics in the queue, and whether more were sent than it could hold."""
        topics = []
        with suppress(BlockingIOError):
            while True:
                topics.append(self._socket.recv(1 << 16).decode("utf-8", "replace"))
        try:
            touched = os.stat(self._path).st_mtime_ns
        except FileNotFoundError:
            self.pid = 0  # swept away, nobody reaches us: the next wait makes another
            return topics, True
        lost, self._touched = touched != self._touched, touched
        return topics, lost

    def sleep(self, timeout: float, wakeup_fd: int) -> None:
        """Until there is something to read, or the bell was rung."""
        poll = select.poll()  # select() knows no descriptor above 1023
        poll.register(self._socket, select.POLLIN)
        poll.register(wakeup_fd, select.POLLIN)
        poll.poll(timeout * 1000)

    def close_inherited(self) -> None:
        self._socket.close()

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        self._socket.close()


def _is_for(name: str, topic: str) -> bool:
    """NAME.sock is for any topic, NAME.PREFIX.sock for those that begin so."""
    parts = name.split(".")
    return len(parts) < 3 or topic.startswith(parts[1])


def _send(sender: socket.socket, path: Path, data: bytes) -> None:
    with _address(path) as address:
        try:
            sender.sendto(data, address)
        except ConnectionRefusedError:
            path.unlink()  # its listener died
        except BlockingIOError:
            # Touch first, send again after: if the queue is still full, the listener has yet to
            # drain it and will then see the touch; if not, it gets the datagram.
            os.utime(path, ns=(0, time.time_ns()))  # "now" is only as fine as the kernel's tick
            sender.sendto(data, address)


@contextmanager
def _address(path: Path) -> Iterator[str]:
    """The path, or a short one that leads to it."""
    if len(os.fsencode(path)) <= _SUN_PATH:
        yield str(path)
        return
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{path.name}"
    finally:
        os.close(fd)
