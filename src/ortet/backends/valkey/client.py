"""Connections to a Valkey or Redis server that nothing depends on: it may be slow, or gone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

import msgspec

from ortet.backends.valkey.valkeyaddress import Address
from ortet.errors import Refused, Unsupported

if TYPE_CHECKING:
    from redis.connection import AbstractConnection

T = TypeVar("T")

PATIENCE = 0.1
"""Seconds that an answer may take: what it spares takes tens of milliseconds."""
REST = 1.0
"""Seconds for which a server that did not answer is left alone."""
_REACH = 2.0
"""Seconds in which a server must be reached by those whom nobody waits for."""
_FRESH = 30.0
_FREE = 16
"""Connections that are kept for the next one who asks."""


class Line:
    """One connection. `run` tells one life of a server from the next, which may begin with an older
    state of its data; `ahead` is how far its clock is before our monotonic one, in seconds."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection
        self.run = ""
        self.ahead = 0.0
        self.since = 0.0  # when both were asked for

    def greet(self) -> None:
        told, now = self.calls([("INFO", "server"), ("TIME",)])
        for part in told.decode().splitlines():
            name, _, value = part.partition(":")
            self.run = value if name == "run_id" else self.run
        # the answer is older than this moment: rather too little than too much
        self.since = time.monotonic()
        self.ahead = int(now[0]) + int(now[1]) / 1e6 - self.since

    def call(self, *command: Any) -> Any:
        return self.calls([command])[0]

    def calls(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """All answers; the first that is an error is raised when all have come."""
        from redis.exceptions import ResponseError  # noqa: PLC0415 - optional

        connection: Any = self._connection
        connection.send_packed_command(connection.pack_commands(commands), check_health=False)
        answers, refused = [], None
        for _ in commands:
            try:
                answers.append(connection.read_response())
            except ResponseError as error:
                refused = refused or error
        if refused is not None:
            raise refused
        return answers

    def heard(self, timeout: float) -> Any:
        """What it sends next; None when that takes too long."""
        connection: Any = self._connection
        return connection.read_response() if connection.can_read(timeout) else None

    def send(self, *command: Any) -> None:
        connection: Any = self._connection
        connection.send_command(*command, check_health=False)

    def close(self) -> None:
        """Whoever waits for it in another thread is woken."""
        connection: Any = self._connection
        connection.disconnect()


class Link:
    """Asks for what may as well not be answered. After a failure it leaves the server alone for a
    second, then one call tries again; `trouble` says why it has no answers."""

    def __init__(self, address: Address, *, patience: float = PATIENCE) -> None:
        self.address = address
        self.trouble = ""
        self.patience = patience
        self._users = 0
        self._redis = load()
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._lock = Lock()
        self._free: list[Line] = []
        self._closed = False
        self._again = 0.0  # when it may be asked again

    def ask(self, use: Callable[[Line], T]) -> T | None:
        """What `use` makes of a connection; None without an answer in time."""
        if self._pid != os.getpid():
            self._start()  # a connection is its process's own
        line = None
        try:
            line = self._take()
            if line is None:
                return None
            answer = use(line)
        except self._redis.ResponseError as error:  # it is there, but does not do this
            self._down(error, line=line if self._is_sound(error) else None)
            return None
        except (self._redis.RedisError, OSError, ValueError) as error:
            if line is not None:
                line.close()
            self._down(error)
            return None
        except BaseException:
            if line is not None:
                line.close()  # the answer is still to come there
            raise
        self.trouble = ""
        self._give(line)
        return answer

    def connect(self, patience: float = _REACH) -> Line:
        """A connection of one's own, closed by whoever asked; what redis-py or the system raises
        where there is none."""
        address, seconds = self.address, max(patience, self.patience)
        given: dict[str, Any] = {"db": address.db, "protocol": 2, "socket_timeout": seconds}
        given |= {"username": address.username, "password": address.password}
        if address.path:
            return Line(self._redis.UnixDomainSocketConnection(path=address.path, **given))
        given |= {"host": address.host, "port": address.port, "socket_connect_timeout": seconds}
        given["socket_keepalive"] = True
        if address.secure:
            return Line(self._redis.SSLConnection(ssl_ca_certs=address.ca_file, **given))
        return Line(self._redis.Connection(**given))

    def check(self) -> None:
        """Refused where the server is there but does not let us in; a server that is gone is no
        error."""
        line = self.connect(self.patience)
        try:
            line.greet()
        except self._redis.AuthenticationError as error:
            raise _refused(self.address, error) from None
        except self._redis.ResponseError as error:
            if str(error).startswith(("NOAUTH", "NOPERM", "WRONGPASS")):
                raise _refused(self.address, error) from None
        except (self._redis.RedisError, OSError) as error:
            self._down(error)
        finally:
            line.close()

    def join(self) -> bool:
        """One more uses it, and closes it by `leave`; False when the last one just has."""
        with self._lock:
            self._users += not self._closed
            return not self._closed

    def leave(self) -> None:
        if self._pid != os.getpid():
            return
        with self._lock:
            self._users -= 1
            if self._users > 0:
                return
            free, self._free, self._closed = self._free, [], True
        for line in free:
            line.close()

    @property
    def troubles(self) -> tuple[type[Exception], ...]:
        """What a connection raises when the server is not there, or not ours, or when another
        thread has closed it."""
        return (self._redis.RedisError, OSError, ValueError, AttributeError, TypeError)

    def _take(self) -> Line | None:
        with self._lock:
            now = time.monotonic()
            if now < self._again or self._closed:
                return None
            if self._again:
                self._again = now + REST  # one tries, the others do not wait for it
            line = self._free.pop() if self._free else self.connect(self.patience)
        try:
            if not line.since or time.monotonic() - line.since > _FRESH:
                line.greet()  # clocks drift apart
        except BaseException:
            line.close()
            raise
        return line

    def _give(self, line: Line) -> None:
        with self._lock:
            self._again = 0.0
            if len(self._free) < _FREE and not self._closed:
                self._free.append(line)
                return
        line.close()

    def _is_sound(self, error: Exception) -> bool:
        """An answer to this one command, not to whoever asks."""
        return not str(error).startswith(("NOAUTH", "WRONGPASS", "LOADING", "MASTERDOWN", "BUSY"))

    def _down(self, error: Exception, line: Line | None = None) -> None:
        self.trouble = str(error)
        if line is not None:
            self._give(line)
            return
        with self._lock:
            free, self._free = self._free, []
            self._again = time.monotonic() + REST
        for other in free:
            other.close()


_LINKS: WeakValueDictionary[Address, Link] = WeakValueDictionary()
"""Of this process: a server opens a hub for each session, and one that found the server slow has
found it so for all."""


def joined(address: Address) -> Link:
    """A link that all of this process share; Refused by a server that does not let us in."""
    found = _LINKS.get(address)
    if found is None or not found.join():
        found = Link(address)
        found.check()
        found.join()
        _LINKS[address] = found
    return found


class _Redis(msgspec.Struct, frozen=True):
    """What is used of redis-py."""

    Connection: Any
    SSLConnection: Any
    UnixDomainSocketConnection: Any
    RedisError: type[Exception]
    ResponseError: type[Exception]
    AuthenticationError: type[Exception]


def load() -> _Redis:
    try:
        from redis import connection, exceptions  # noqa: PLC0415 - optional
    except ImportError:
        raise Unsupported(
            "not_installed",
            "redis-py is not installed, and a store with signal= or cache= needs it: "
            "pip install 'ortet[valkey]'",
        ) from None
    return _Redis(
        connection.Connection,
        connection.SSLConnection,
        connection.UnixDomainSocketConnection,
        exceptions.RedisError,
        exceptions.ResponseError,
        exceptions.AuthenticationError,
    )


def _refused(address: Address, error: Exception) -> Refused:
    return Refused(
        "login_refused",
        f"{address} does not let us in ({error}): correct the user and password in its address, or "
        "the file that password_file= names",
    )
