"""Rate limits: requests per second and concurrent requests, per token and per address."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from threading import Lock

from ortet.backends.base import Cache
from ortet.config.settings import ServeSettings
from ortet.errors import Unavailable
from ortet.server.auth.tokens import Caller
from ortet.server.errors import TooManyRequests

_MAX_BUCKETS = 10_000
"""Maximum number of names with a bucket. A full bucket needs no entry."""


SharedBucket = Callable[[str, float, float], float | None]
"""Takes a token from a bucket shared by several servers, by name, rate and burst.

See `Cache.take_token`.
"""


class TokenBuckets:
    """A token bucket for each name, with at most `burst` tokens, refilled at `rate` per second.

    If `shared` is given, servers also share a bucket per name, so a limit holds across servers.
    """

    def __init__(
        self,
        rate: float,
        burst: float,
        clock: Callable[[], float] = time.monotonic,
        *,
        shared: SharedBucket = lambda _name, _rate, _burst: None,
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._shared = shared
        self._levels: dict[str, tuple[float, float]] = {}
        self._lock = Lock()

    def take(self, name: str) -> float:
        """Take one token. Return 0 on success, else the seconds until one is available."""
        if not self._rate:
            return 0.0
        # Check the local bucket first, so that excess requests cause no traffic to the shared one.
        return self._take(name) or self._shared(name, self._rate, self._burst) or 0.0

    def _take(self, name: str) -> float:
        with self._lock:
            now = self._clock()
            level, then = self._levels.pop(name, (self._burst, now))
            level = min(self._burst, level + (now - then) * self._rate)
            enough = level >= 1
            if len(self._levels) >= _MAX_BUCKETS:
                self._evict(now)
            self._levels[name] = (level - enough, now)  # insertion order is the order of last use
            return 0.0 if enough else (1 - level) / self._rate

    def _evict(self, now: float) -> None:
        """Remove the full buckets, or else the least recently used one."""
        full = [
            name
            for name, (level, then) in self._levels.items()
            if level + (now - then) * self._rate >= self._burst
        ]
        for name in full or list(self._levels)[:1]:
            del self._levels[name]


class RateLimiter:
    """The limits of one server, or of all servers that share a cache. Thread-safe."""

    def __init__(self, settings: ServeSettings, cache: Cache | None = None) -> None:
        self.settings = settings
        self.requests = 0
        self.refused: dict[str, int] = {"rate": 0, "requests": 0, "unknown": 0}
        rate, unknown = _shared_bucket(cache, "token"), _shared_bucket(cache, "address")
        self._token_buckets = TokenBuckets(settings.rate, settings.burst, shared=rate)
        self._address_buckets = TokenBuckets(
            settings.unknown_rate, settings.unknown_rate * 5, shared=unknown
        )
        self._requests_per_token: dict[str, int] = {}
        self._lock = Lock()

    def enter(self) -> None:
        """Count a request before its caller is known. Call `leave` when it ends."""
        with self._lock:
            full = self.requests >= self.settings.requests
            self.requests += not full
        if full:
            raise self._busy("requests", "too many requests are being done: try again")

    def leave(self) -> None:
        """Undo `enter` at the end of a request."""
        with self._lock:
            self.requests -= 1

    def admit(self, caller: Caller) -> None:
        """Count a request of a token. Call `release` when it ends. The owner has no limit."""
        if not caller.token:
            return
        wait = self._token_buckets.take(caller.token)
        if wait:
            raise self._too_many("rate", wait)
        with self._lock:
            count = self._requests_per_token.get(caller.token, 0)
            full = count >= self.settings.requests_each
            if not full:
                self._requests_per_token[caller.token] = count + 1
        if full:
            raise self._too_many("requests", 1.0)

    def release(self, caller: Caller) -> None:
        """Undo `admit` at the end of a request."""
        if caller.token:
            with self._lock:
                left = self._requests_per_token[caller.token] - 1
                if left:
                    self._requests_per_token[caller.token] = left
                else:
                    del self._requests_per_token[caller.token]

    def admit_address(self, address: str) -> None:
        """Count a request without a valid token, by its address."""
        wait = self._address_buckets.take(address)
        if wait:
            raise self._too_many("unknown", wait)

    def _too_many(self, what: str, wait: float) -> TooManyRequests:
        self._count(what)
        seconds = max(1, math.ceil(wait))
        return TooManyRequests(
            "too_many_requests",
            f"too many requests at once: wait {seconds} s, then ask more slowly",
            retry_after=seconds,
        )

    def _busy(self, what: str, message: str) -> Unavailable:
        self._count(what)
        return Unavailable("too_busy", message)

    def _count(self, what: str) -> None:
        with self._lock:
            self.refused[what] += 1


def _shared_bucket(cache: Cache | None, kind: str) -> SharedBucket:
    def take(name: str, rate: float, burst: float) -> float | None:
        if cache is None:
            return None
        return cache.take_token(f"{kind}/{name or 'nobody'}", rate=rate, burst=burst)

    return take
