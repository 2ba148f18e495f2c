"""Cache on a Valkey or Redis server: one for all servers of a store, and empty when that is gone.

What is kept there belongs to one life of the server: after a restart or a failover, which may bring
back older data, nothing of before is given. What could not be forgotten there is remembered here,
and is forgotten before anything is asked that it could answer.
"""

from __future__ import annotations

import hashlib
import re
import time
from threading import Lock
from typing import Any, NamedTuple

from ortet.backends.base import Cache
from ortet.backends.keys import check_name
from ortet.backends.local.cache import check_ttl
from ortet.backends.valkey.client import Line, Link
from ortet.backends.valkey.valkeyaddress import check_space

LIMIT = 8 << 20
"""Bytes of a value: a larger one would be waited for longer than it is worth."""
LONGEST_NS = 24 * 3600 * 1_000_000_000
"""What nobody gave a time is not kept for ever on a server that others use."""
_MOST = 1000
"""Keys that are remembered to be forgotten; with more, it is all of them."""
_PAGE = 1000

# Not when it is late: a server that was stopped would put what was given up, and replaced, since.
_PUT = """
local now = redis.call('TIME')
if now[1] + now[2] / 1000000 > tonumber(ARGV[3]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""

_TAKE = """
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


class Debt(NamedTuple):
    """Something to forget: a key, or all that begin so."""

    text: str
    whole: bool
    number: int = 0  # the same may have to be forgotten again while it is being forgotten

    def is_of(self, key: str) -> bool:
        return key == self.text if self.whole else key.startswith(self.text)


class ValkeyCache(Cache):
    """Keys of one `space`: others of the same server are not seen. The link was joined for it."""

    shared = True

    def __init__(self, link: Link, space: str, *, limit: int = LIMIT) -> None:
        self._link = link
        self._head = f"ortet:{{{check_space(space)}}}:"
        self._limit = limit
        self._debts: dict[tuple[str, bool], Debt] = {}
        self._count = 0
        self._lock = Lock()

    def get(self, key: str) -> bytes | None:
        check_name(key)
        return self._link.ask(lambda line: self._got(line, key))

    def put(self, key: str, value: bytes, ttl_ns: int | None = None) -> None:
        check_name(key)
        kept = LONGEST_NS if ttl_ns is None else min(check_ttl(ttl_ns), LONGEST_NS)
        if len(value) > self._limit:
            self._forget(key, whole=True)
        elif not self._link.ask(lambda line: self._did(line, key, value, kept)):
            self._owe(key, whole=True)

    def drop(self, prefix: str) -> None:
        self._forget(check_name(prefix) if prefix else "", whole=False)

    def take(self, name: str, *, rate: float, burst: float) -> float | None:
        key = f"{self._head}r:{check_name(name)}"
        told = self._link.ask(lambda line: _run(line, _TAKE, key, (rate, burst)))
        return None if told is None else float(told)

    def close(self) -> None:
        self._link.leave()

    def _got(self, line: Line, key: str) -> bytes | None:
        self._settle(line, key)
        found: bytes | None = line.call("GET", self._place(line, key))
        return found

    def _did(self, line: Line, key: str, value: bytes, ttl_ns: int) -> bool:
        self._settle(line, key)
        until = f"{time.monotonic() + line.ahead + self._link.patience:.6f}"
        given = (value, max(1, ttl_ns // 1_000_000), until)
        return bool(_run(line, _PUT, self._place(line, key), given))

    def _forget(self, text: str, *, whole: bool) -> None:
        """Owed first: whatever happens then, it is not given again."""
        debt = self._owe(text, whole=whole)
        self._link.ask(lambda line: self._pay(line, debt))

    def _owe(self, text: str, *, whole: bool) -> Debt:
        with self._lock:
            self._count += 1
            if len(self._debts) >= _MOST:
                self._debts.clear()
                text, whole = "", False
            debt = self._debts[text, whole] = Debt(text, whole, self._count)
            return debt

    def _settle(self, line: Line, key: str) -> None:
        if self._debts:
            with self._lock:
                debts = [debt for debt in self._debts.values() if debt.is_of(key)]
            for debt in debts:
                self._pay(line, debt)

    def _pay(self, line: Line, debt: Debt) -> None:
        if debt.whole:
            line.call("UNLINK", self._place(line, debt.text))
        else:
            self._sweep(line, debt.text)
        with self._lock:
            if self._debts.get((debt.text, debt.whole)) == debt:
                del self._debts[debt.text, debt.whole]

    def _sweep(self, line: Line, prefix: str) -> None:
        """Of every life of the server: what an older one kept is not given, but may be there."""
        lives = "?" * len(line.run)
        pattern = f"{_literal(self._head)}c:{lives}:{_literal(prefix)}*"
        cursor = b"0"
        while True:
            cursor, keys = line.call("SCAN", cursor, "MATCH", pattern, "COUNT", _PAGE)
            if keys:
                line.call("UNLINK", *keys)
            if int(cursor) == 0:
                return

    def _place(self, line: Line, key: str) -> str:
        return f"{self._head}c:{line.run}:{key}"


def _literal(text: str) -> str:
    return re.sub(r"([*?\[\]\\^-])", r"\\\1", text)


def _run(line: Line, script: str, key: str, given: tuple[Any, ...]) -> Any:
    """By its hash; a server that does not know it is told it."""
    from redis.exceptions import NoScriptError  # noqa: PLC0415 - optional

    name = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
    try:
        return line.call("EVALSHA", name, 1, key, *given)
    except NoScriptError:
        return line.call("EVAL", script, 1, key, *given)
