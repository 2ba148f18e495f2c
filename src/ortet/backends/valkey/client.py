"""Connections to a Valkey or Redis server that nothing depends on: it may be slow, or gone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

import msgspec

from ortet.backends.valkey.valkeyaddress import ValkeyAddress
from ortet.errors import Refused, Unsupported

if TYPE_CHECKING:
    from redis.connection import AbstractConnection

T = TypeVar("T")

ANSWER_TIMEOUT_SECONDS = 0.1
"""Seconds that an answer may take: what it spares takes tens of milliseconds."""
RETRY_AFTER_SECONDS = 1.0
"""Seconds for which a server that did not answer is left alone."""
_CONNECT_TIMEOUT_SECONDS = 2.0
"""Seconds in which a server must be reached by those whom nobody waits for."""
_SERVER_INFO_MAX_AGE_SECONDS = 30.0
_MAX_IDLE_CONNECTIONS = 16
"""Connections that are kept for the next one who asks."""


class ValkeyConnection:
    """One connection. `run` tells one life of a server from the next, which may begin with an older
    state of its data; `ahead` is how far its clock is before our monotonic one, in seconds."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection
        self.run_id = ""
        self.clock_offset = 0.0
        self.server_info_time = 0.0  # when both were asked for

    def read_server_info(self) -> None:
        told, now = self.call_many([("INFO", "server"), ("TIME",)])
        for part in told.decode().splitlines():
            name, _, value = part.partition(":")
            self.run_id = value if name == "run_id" else self.run_id
        # the answer is older than this moment: rather too little than too much
        self.server_info_time = time.monotonic()
        self.clock_offset = int(now[0]) + int(now[1]) / 1e6 - self.server_info_time

    def call(self, *command: Any) -> Any:
        return self.call_many([command])[0]

    def call_many(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
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

    def receive(self, timeout: float) -> Any:
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


class ValkeyClient:
    """Asks for what may as well not be answered. After a failure it leaves the server alone for a
    second, then one call tries again; `trouble` says why it has no answers."""

    def __init__(
        self, address: ValkeyAddress, *, answer_timeout: float = ANSWER_TIMEOUT_SECONDS
    ) -> None:
        self.address = address
        self.last_error = ""
        self.answer_timeout = answer_timeout
        self._users = 0
        self._redis = load_redis()
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._lock = Lock()
        self._idle_connections: list[ValkeyConnection] = []
        self._closed = False
        self._retry_at = 0.0  # when it may be asked again

    def try_call(self, use: Callable[[ValkeyConnection], T]) -> T | None:
        """What `use` makes of a connection; None without an answer in time."""
        if self._pid != os.getpid():
            self._start()  # a connection is its process's own
        line = None
        try:
            line = self._get_connection()
            if line is None:
                return None
            answer = use(line)
        except self._redis.ResponseError as error:  # it is there, but does not do this
            self._down(error, connection=line if self._is_command_error(error) else None)
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
        self.last_error = ""
        self._return_connection(line)
        return answer

    def connect(self, timeout: float = _CONNECT_TIMEOUT_SECONDS) -> ValkeyConnection:
        """A connection of one's own, closed by whoever asked; what redis-py or the system raises
        where there is none."""
        address, seconds = self.address, max(timeout, self.answer_timeout)
        given: dict[str, Any] = {"db": address.db, "protocol": 2, "socket_timeout": seconds}
        given |= {"username": address.username, "password": address.password}
        if address.path:
            return ValkeyConnection(
                self._redis.UnixDomainSocketConnection(path=address.path, **given)
            )
        given |= {"host": address.host, "port": address.port, "socket_connect_timeout": seconds}
        given["socket_keepalive"] = True
        if address.secure:
            return ValkeyConnection(
                self._redis.SSLConnection(ssl_ca_certs=address.ca_file, **given)
            )
        return ValkeyConnection(self._redis.Connection(**given))

    def check_login(self) -> None:
        """Refused where the server is there but does not let us in; a server that is gone is no
        error."""
        line = self.connect(self.answer_timeout)
        try:
            line.read_server_info()
        except self._redis.AuthenticationError as error:
            raise _login_refused(self.address, error) from None
        except self._redis.ResponseError as error:
            if str(error).startswith(("NOAUTH", "NOPERM", "WRONGPASS")):
                raise _login_refused(self.address, error) from None
        except (self._redis.RedisError, OSError) as error:
            self._down(error)
        finally:
            line.close()

    def add_user(self) -> bool:
        """One more uses it, and closes it by `leave`; False when the last one just has."""
        with self._lock:
            self._users += not self._closed
            return not self._closed

    def remove_user(self) -> None:
        if self._pid != os.getpid():
            return
        with self._lock:
            self._users -= 1
            if self._users > 0:
                return
            free, self._idle_connections, self._closed = self._idle_connections, [], True
        for line in free:
            line.close()

    @property
    def connection_errors(self) -> tuple[type[Exception], ...]:
        """What a connection raises when the server is not there, or not ours, or when another
        thread has closed it."""
        return (self._redis.RedisError, OSError, ValueError, AttributeError, TypeError)

    def _get_connection(self) -> ValkeyConnection | None:
        with self._lock:
            now = time.monotonic()
            if now < self._retry_at or self._closed:
                return None
            if self._retry_at:
                self._retry_at = (
                    now + RETRY_AFTER_SECONDS
                )  # one tries, the others do not wait for it
            line = (
                self._idle_connections.pop()
                if self._idle_connections
                else self.connect(self.answer_timeout)
            )
        try:
            if (
                not line.server_info_time
                or time.monotonic() - line.server_info_time > _SERVER_INFO_MAX_AGE_SECONDS
            ):
                line.read_server_info()  # clocks drift apart
        except BaseException:
            line.close()
            raise
        return line

    def _return_connection(self, connection: ValkeyConnection) -> None:
        with self._lock:
            self._retry_at = 0.0
            if len(self._idle_connections) < _MAX_IDLE_CONNECTIONS and not self._closed:
                self._idle_connections.append(connection)
                return
        connection.close()

    def _is_command_error(self, error: Exception) -> bool:
        """An answer to this one command, not to whoever asks."""
        return not str(error).startswith(("NOAUTH", "WRONGPASS", "LOADING", "MASTERDOWN", "BUSY"))

    def _down(self, error: Exception, connection: ValkeyConnection | None = None) -> None:
        self.last_error = str(error)
        if connection is not None:
            self._return_connection(connection)
            return
        with self._lock:
            free, self._idle_connections = self._idle_connections, []
            self._retry_at = time.monotonic() + RETRY_AFTER_SECONDS
        for other in free:
            other.close()


_CLIENTS: WeakValueDictionary[ValkeyAddress, ValkeyClient] = WeakValueDictionary()
"""Of this process: a server opens a hub for each session, and one that found the server slow has
found it so for all."""


def shared_client(address: ValkeyAddress) -> ValkeyClient:
    """A link that all of this process share; Refused by a server that does not let us in."""
    found = _CLIENTS.get(address)
    if found is None or not found.add_user():
        found = ValkeyClient(address)
        found.check_login()
        found.add_user()
        _CLIENTS[address] = found
    return found


class _RedisModule(msgspec.Struct, frozen=True):
    """What is used of redis-py."""

    Connection: Any
    SSLConnection: Any
    UnixDomainSocketConnection: Any
    RedisError: type[Exception]
    ResponseError: type[Exception]
    AuthenticationError: type[Exception]


def load_redis() -> _RedisModule:
    try:
        from redis import connection, exceptions  # noqa: PLC0415 - optional
    except ImportError:
        raise Unsupported(
            "not_installed",
            "redis-py is not installed, and a store with signal= or cache= needs it: "
            "pip install 'ortet[valkey]'",
        ) from None
    return _RedisModule(
        connection.Connection,
        connection.SSLConnection,
        connection.UnixDomainSocketConnection,
        exceptions.RedisError,
        exceptions.ResponseError,
        exceptions.AuthenticationError,
    )


def _login_refused(address: ValkeyAddress, error: Exception) -> Refused:
    return Refused(
        "login_refused",
        f"{address} does not let us in ({error}): correct the user and password in its address, or "
        "the file that password_file= names",
    )
