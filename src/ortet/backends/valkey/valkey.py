"""From the address of a Valkey or Redis server to a store's Signal and Cache there."""

from __future__ import annotations

from ortet.backends.base import Cache, Signal
from ortet.backends.valkey.cache import ValkeyCache
from ortet.backends.valkey.client import joined
from ortet.backends.valkey.signal import ValkeySignal
from ortet.backends.valkey.valkeyaddress import SCHEMES, address_of

__all__ = ["cache_of", "is_valkey", "signal_of"]


def is_valkey(url: str) -> bool:
    scheme, found, _ = url.partition("://")
    return bool(found) and scheme.lower() in SCHEMES


def signal_of(url: str, *, space: str) -> Signal:
    """For the store whose id is `space`. Refused where the server is there but does not let us in;
    one that is gone is no error: it is heard when it is back."""
    address = address_of(url)
    link = joined(address)
    try:
        return ValkeySignal(address, space)
    finally:
        link.leave()


def cache_of(url: str, *, space: str) -> Cache:
    """The same of a cache, which is empty as long as the server is gone."""
    return ValkeyCache(joined(address_of(url)), space)
