"""From the address of a Valkey or Redis server to a store's Signal and Cache there."""

from __future__ import annotations

from ortet.backends.base import Cache, Signal
from ortet.backends.valkey.cache import ValkeyCache
from ortet.backends.valkey.client import shared_client
from ortet.backends.valkey.signal import ValkeySignal
from ortet.backends.valkey.valkeyaddress import VALKEY_SCHEMES, parse_valkey_url

__all__ = ["is_valkey", "open_cache", "open_signal"]


def is_valkey(url: str) -> bool:
    scheme, found, _ = url.partition("://")
    return bool(found) and scheme.lower() in VALKEY_SCHEMES


def open_signal(url: str, *, namespace: str) -> Signal:
    """For the store whose id is `space`. Refused where the server is there but does not let us in;
    one that is gone is no error: it is heard when it is back."""
    address = parse_valkey_url(url)
    link = shared_client(address)
    try:
        return ValkeySignal(address, namespace)
    finally:
        link.remove_user()


def open_cache(url: str, *, namespace: str) -> Cache:
    """The same of a cache, which is empty as long as the server is gone."""
    return ValkeyCache(shared_client(parse_valkey_url(url)), namespace)
