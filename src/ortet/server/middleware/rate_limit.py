"""How much one may ask: requests a second, requests at once."""

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
"""Names a bucket is kept for; a name that has rested needs none."""


SharedBucket = Callable[[str, float, float], float | None]
"""Takes from a bucket that several servers share, by its name, rate and burst: see Cache.take."""


class TokenBuckets:
    """A bucket for each name: `burst` drops at most, `rate` of them come back each second. Where
    servers share one, who has emptied it at one of them gets nothing from another."""

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
        """0 when there was one; else the seconds until there is."""
        if not self._rate:
            return 0.0
        # our own first: who asks far too much of us costs the other servers nothing
        return self._take(name) or self._shared(name, self._rate, self._burst) or 0.0

    def _take(self, name: str) -> float:
        with self._lock:
            now = self._clock()
            level, then = self._levels.pop(name, (self._burst, now))
            level = min(self._burst, level + (now - then) * self._rate)
            enough = level >= 1
            if len(self._levels) >= _MAX_BUCKETS:
                self._evict(now)
            self._levels[name] = (level - enough, now)  # the newest is the last
            return 0.0 if enough else (1 - level) / self._rate

    def _evict(self, now: float) -> None:
        """Those that are full again, else the one that has rested for longest."""
        full = [
            name
            for name, (level, then) in self._levels.items()
            if level + (now - then) * self._rate >= self._burst
        ]
        for name in full or list(self._levels)[:1]:
            del self._levels[name]


class RateLimiter:
    """Of one server, or of all that share a cache. Any thread may ask."""

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
        """A request, before anybody knows whose it is; `leave` when it ends."""
        with self._lock:
            full = self.requests >= self.settings.requests
            self.requests += not full
        if full:
            raise self._busy("requests", "too many requests are being done: try again")

    def leave(self) -> None:
        with self._lock:
            self.requests -= 1

    def admit(self, caller: Caller) -> None:
        """One more of a token; `dismiss` when it ends. Who owns the machine asks as it likes."""
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
        if caller.token:
            with self._lock:
                left = self._requests_per_token[caller.token] - 1
                if left:
                    self._requests_per_token[caller.token] = left
                else:
                    del self._requests_per_token[caller.token]

    def admit_address(self, address: str) -> None:
        """Somebody without a valid token, whose address is all that is known."""
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
