"""The Cache on a Valkey or Redis server, shared by all servers of a store.

An unreachable server acts as an empty cache. Entries belong to one run of the server: a restart or
failover may bring back older data, so entries of earlier runs are never returned. Deletions that
could not be sent are remembered here. They are sent before any request that they affect.
"""

from __future__ import annotations

import hashlib
import re
import time
from threading import Lock
from typing import Any, NamedTuple

from ortet.backends.base import Cache
from ortet.backends.keys import check_name
from ortet.backends.local.memory import check_ttl
from ortet.backends.valkey.address import check_namespace, parse_valkey_url
from ortet.backends.valkey.client import ValkeyClient, ValkeyConnection, shared_client

MAX_VALUE_BYTES = 8 << 20
"""Larger values are not cached: fetching one would take longer than it saves."""
MAX_TTL_NS = 24 * 3600 * 1_000_000_000
"""The longest time to live, so that no entry stays forever on a shared server."""
_MAX_PENDING_DELETES = 1000
"""The maximum number of remembered deletions. Beyond it, everything is deleted."""
_PAGE = 1000

# Does nothing after a deadline. A server that was paused would otherwise store a value late, after
# it has been given up and replaced.
_PUT = """
local now = redis.call('TIME')
if now[1] + now[2] / 1000000 > tonumber(ARGV[3]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""

_TAKE_TOKEN_SCRIPT = """
local time = redis.call('TIME')
local now, rate, burst = time[1] + time[2] / 1000000, tonumber(ARGV[1]), tonumber(ARGV[2])
local kept = redis.call('HMGET', KEYS[1], 'level', 'time')
local level = burst
if kept[1] and kept[2] then
  level = math.min(burst, tonumber(kept[1]) + math.max(0, now - tonumber(kept[2])) * rate)
end
local wait = 0
if level >= 1 then level = level - 1 else wait = (1 - level) / rate end
local spent = string.format('%.9f', level)
redis.call('HSET', KEYS[1], 'level', spent, 'time', string.format('%.6f', now))
redis.call('PEXPIRE', KEYS[1], math.ceil((burst - level) / rate * 1000) + 1000)
return string.format('%.6f', wait)
"""


def open_cache(url: str, *, namespace: str) -> Cache:
    """Open the cache of the store with id `namespace`.

    Raise Refused if the server rejects the login. While the server is unreachable, the cache is
    empty.
    """
    return ValkeyCache(shared_client(parse_valkey_url(url)), namespace)


class PendingDelete(NamedTuple):
    """A deletion that the server has not confirmed: a key, or a prefix."""

    key_or_prefix: str
    is_exact: bool
    sequence: int = 0  # the same deletion may be requested again while it runs

    def covers(self, key: str) -> bool:
        """Return True if this deletion affects `key`."""
        return key == self.key_or_prefix if self.is_exact else key.startswith(self.key_or_prefix)


class ValkeyCache(Cache):
    """A cache whose keys are in one namespace. `client` was acquired for this cache."""

    shared = True

    def __init__(
        self, client: ValkeyClient, namespace: str, *, limit: int = MAX_VALUE_BYTES
    ) -> None:
        self._client = client
        self._key_prefix = f"ortet:{{{check_namespace(namespace)}}}:"
        self._limit = limit
        self._pending_deletes: dict[tuple[str, bool], PendingDelete] = {}
        self._count = 0
        self._lock = Lock()

    def get(self, key: str) -> bytes | None:
        check_name(key)
        return self._client.try_call(lambda connection: self._get(connection, key))

    def put(self, key: str, value: bytes, ttl_ns: int | None = None) -> None:
        check_name(key)
        limited_ttl = MAX_TTL_NS if ttl_ns is None else min(check_ttl(ttl_ns), MAX_TTL_NS)
        if len(value) > self._limit:
            self._delete(key, is_exact=True)
        elif not self._client.try_call(
            lambda connection: self._put(connection, key, value, limited_ttl)
        ):
            self._add_pending_delete(key, is_exact=True)

    def drop(self, prefix: str) -> None:
        self._delete(check_name(prefix) if prefix else "", is_exact=False)

    def take_token(self, name: str, *, rate: float, burst: float) -> float | None:
        key = f"{self._key_prefix}r:{check_name(name)}"
        answer = self._client.try_call(
            lambda connection: _eval_script(connection, _TAKE_TOKEN_SCRIPT, key, (rate, burst))
        )
        return None if answer is None else float(answer)

    def close(self) -> None:
        self._client.remove_user()

    def _get(self, connection: ValkeyConnection, key: str) -> bytes | None:
        self._run_pending_deletes(connection, key)
        value: bytes | None = connection.call("GET", self._server_key(connection, key))
        return value

    def _put(self, connection: ValkeyConnection, key: str, value: bytes, ttl_ns: int) -> bool:
        self._run_pending_deletes(connection, key)
        until = f"{time.monotonic() + connection.clock_offset + self._client.answer_timeout:.6f}"
        arguments = (value, max(1, ttl_ns // 1_000_000), until)
        return bool(_eval_script(connection, _PUT, self._server_key(connection, key), arguments))

    def _delete(self, text: str, *, is_exact: bool) -> None:
        """Delete a key or prefix.

        It is recorded first, so that it is never returned, even on failure.
        """
        debt = self._add_pending_delete(text, is_exact=is_exact)
        self._client.try_call(lambda connection: self._run_delete(connection, debt))

    def _add_pending_delete(self, text: str, *, is_exact: bool) -> PendingDelete:
        with self._lock:
            self._count += 1
            if len(self._pending_deletes) >= _MAX_PENDING_DELETES:
                self._pending_deletes.clear()
                text, is_exact = "", False
            debt = self._pending_deletes[text, is_exact] = PendingDelete(
                text, is_exact, self._count
            )
            return debt

    def _run_pending_deletes(self, connection: ValkeyConnection, key: str) -> None:
        if self._pending_deletes:
            with self._lock:
                debts = [debt for debt in self._pending_deletes.values() if debt.covers(key)]
            for debt in debts:
                self._run_delete(connection, debt)

    def _run_delete(self, connection: ValkeyConnection, delete: PendingDelete) -> None:
        if delete.is_exact:
            connection.call("UNLINK", self._server_key(connection, delete.key_or_prefix))
        else:
            self._delete_prefix(connection, delete.key_or_prefix)
        with self._lock:
            if self._pending_deletes.get((delete.key_or_prefix, delete.is_exact)) == delete:
                del self._pending_deletes[delete.key_or_prefix, delete.is_exact]

    def _delete_prefix(self, connection: ValkeyConnection, prefix: str) -> None:
        """Delete a prefix in the data of every run.

        Entries of older runs are unreachable but stored.
        """
        lives = "?" * len(connection.run_id)
        pattern = f"{_escape_pattern(self._key_prefix)}c:{lives}:{_escape_pattern(prefix)}*"
        cursor = b"0"
        while True:
            cursor, keys = connection.call("SCAN", cursor, "MATCH", pattern, "COUNT", _PAGE)
            if keys:
                connection.call("UNLINK", *keys)
            if int(cursor) == 0:
                return

    def _server_key(self, connection: ValkeyConnection, key: str) -> str:
        return f"{self._key_prefix}c:{connection.run_id}:{key}"


def _escape_pattern(text: str) -> str:
    return re.sub(r"([*?\[\]\\^-])", r"\\\1", text)


def _eval_script(connection: ValkeyConnection, script: str, key: str, args: tuple[Any, ...]) -> Any:
    """Run a script by its hash, or send its text if the server does not know it."""
    from redis.exceptions import NoScriptError  # noqa: PLC0415 - optional

    name = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
    try:
        return connection.call("EVALSHA", name, 1, key, *args)
    except NoScriptError:
        return connection.call("EVAL", script, 1, key, *args)
