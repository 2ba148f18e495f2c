"""Connections to a Valkey or Redis server that is optional: it may be slow or gone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

import msgspec

from ortet.backends.valkey.address import ValkeyAddress
from ortet.errors import Refused, Unsupported

if TYPE_CHECKING:
    from redis.connection import AbstractConnection

T = TypeVar("T")

ANSWER_TIMEOUT_SECONDS = 0.1
"""The time limit for an answer. The cached work takes only tens of milliseconds."""
RETRY_AFTER_SECONDS = 1.0
"""Seconds without requests after a server did not answer."""
_CONNECT_TIMEOUT_SECONDS = 2.0
"""The time limit for connecting in background threads."""
_SERVER_INFO_MAX_AGE_SECONDS = 30.0
_MAX_IDLE_CONNECTIONS = 16
"""The maximum number of idle connections that are kept."""


class ValkeyConnection:
    """One connection.

    `run_id` identifies one run of the server; the next run may start with older data.
    `clock_offset` is the server's clock minus our monotonic clock, in seconds.
    """

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection
        self.run_id = ""
        self.clock_offset = 0.0
        self.server_info_time = 0.0  # when run_id and clock_offset were read

    def read_server_info(self) -> None:
        """Read the run id and the clock of the server."""
        info, now = self.call_many([("INFO", "server"), ("TIME",)])
        for part in info.decode().splitlines():
            name, _, value = part.partition(":")
            self.run_id = value if name == "run_id" else self.run_id
        # the answer is slightly old, so the offset is too small rather than too large
        self.server_info_time = time.monotonic()
        self.clock_offset = int(now[0]) + int(now[1]) / 1e6 - self.server_info_time

    def call(self, *command: Any) -> Any:
        """Run one command and return its answer."""
        return self.call_many([command])[0]

    def call_many(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Run several commands in one round trip.

        Raise the first error after all answers were read.
        """
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
        """Return the next message, or None on timeout."""
        connection: Any = self._connection
        return connection.read_response() if connection.can_read(timeout) else None

    def send(self, *command: Any) -> None:
        """Send a command without reading its answer."""
        connection: Any = self._connection
        connection.send_command(*command, check_health=False)

    def close(self) -> None:
        """Close the connection. A thread that waits on it is woken."""
        connection: Any = self._connection
        connection.disconnect()


class ValkeyClient:
    """Runs commands whose failure is tolerated.

    After a failure, no request is sent for a second; then one call tries again. `last_error` is the
    reason of the failure.
    """

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
        self._retry_at = 0.0  # when the server may be asked again

    def try_call(self, use: Callable[[ValkeyConnection], T]) -> T | None:
        """Return the result of `use` with a connection; None if there is no answer in time."""
        if self._pid != os.getpid():
            self._start()  # connections must not be shared with the parent process
        connection = None
        try:
            connection = self._get_connection()
            if connection is None:
                return None
            answer = use(connection)
        except self._redis.ResponseError as error:  # the server answers, but refuses this command
            self._down(error, connection=connection if self._is_command_error(error) else None)
            return None
        except (self._redis.RedisError, OSError, ValueError) as error:
            if connection is not None:
                connection.close()
            self._down(error)
            return None
        except BaseException:
            if connection is not None:
                connection.close()  # its answer has not been read yet
            raise
        self.last_error = ""
        self._return_connection(connection)
        return answer

    def connect(self, timeout: float = _CONNECT_TIMEOUT_SECONDS) -> ValkeyConnection:
        """Return a new connection, which the caller closes.

        Raises errors of redis-py or the operating system if the server is unreachable.
        """
        address, seconds = self.address, max(timeout, self.answer_timeout)
        options: dict[str, Any] = {"db": address.db, "protocol": 2, "socket_timeout": seconds}
        options |= {"username": address.username, "password": address.password}
        if address.path:
            return ValkeyConnection(
                self._redis.UnixDomainSocketConnection(path=address.path, **options)
            )
        options |= {"host": address.host, "port": address.port, "socket_connect_timeout": seconds}
        options["socket_keepalive"] = True
        if address.secure:
            return ValkeyConnection(
                self._redis.SSLConnection(ssl_ca_certs=address.ca_file, **options)
            )
        return ValkeyConnection(self._redis.Connection(**options))

    def check_login(self) -> None:
        """Raise Refused if the server rejects the login. An unreachable server is not an error."""
        connection = self.connect(self.answer_timeout)
        try:
            connection.read_server_info()
        except self._redis.AuthenticationError as error:
            raise _login_refused(self.address, error) from None
        except self._redis.ResponseError as error:
            if str(error).startswith(("NOAUTH", "NOPERM", "WRONGPASS")):
                raise _login_refused(self.address, error) from None
        except (self._redis.RedisError, OSError) as error:
            self._down(error)
        finally:
            connection.close()

    def add_user(self) -> bool:
        """Register a user of this client, which ends with `remove_user`.

        False if already closed.
        """
        with self._lock:
            self._users += not self._closed
            return not self._closed

    def remove_user(self) -> None:
        """End one use of the client. The last one closes all connections."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._users -= 1
            if self._users > 0:
                return
            free, self._idle_connections, self._closed = self._idle_connections, [], True
        for connection in free:
            connection.close()

    @property
    def connection_errors(self) -> tuple[type[Exception], ...]:
        """The exceptions of a connection that is lost, refused, or closed by another thread."""
        return (self._redis.RedisError, OSError, ValueError, AttributeError, TypeError)

    def _get_connection(self) -> ValkeyConnection | None:
        with self._lock:
            now = time.monotonic()
            if now < self._retry_at or self._closed:
                return None
            if self._retry_at:
                self._retry_at = (
                    now + RETRY_AFTER_SECONDS
                )  # one call tries; the others do not wait for it
            connection = (
                self._idle_connections.pop()
                if self._idle_connections
                else self.connect(self.answer_timeout)
            )
        try:
            if (
                not connection.server_info_time
                or time.monotonic() - connection.server_info_time > _SERVER_INFO_MAX_AGE_SECONDS
            ):
                connection.read_server_info()  # clocks drift apart
        except BaseException:
            connection.close()
            raise
        return connection

    def _return_connection(self, connection: ValkeyConnection) -> None:
        with self._lock:
            self._retry_at = 0.0
            if len(self._idle_connections) < _MAX_IDLE_CONNECTIONS and not self._closed:
                self._idle_connections.append(connection)
                return
        connection.close()

    def _is_command_error(self, error: Exception) -> bool:
        """Return True if the error concerns only this command, not the connection or login."""
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
"""The clients of this process.

A server opens a hub per session; all of them share what is known about a slow server.
"""


def shared_client(address: ValkeyAddress) -> ValkeyClient:
    """Return the client that this process shares for `address`. Raise Refused if login fails."""
    client = _CLIENTS.get(address)
    if client is None or not client.add_user():
        client = ValkeyClient(address)
        client.check_login()
        client.add_user()
        _CLIENTS[address] = client
    return client


class _RedisModule(msgspec.Struct, frozen=True):
    """The parts of redis-py that are used."""

    Connection: Any
    SSLConnection: Any
    UnixDomainSocketConnection: Any
    RedisError: type[Exception]
    ResponseError: type[Exception]
    AuthenticationError: type[Exception]


def load_redis() -> _RedisModule:
    """Import redis-py. Raise Unsupported("not_installed") if it is missing."""
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
