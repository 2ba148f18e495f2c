"""Opens the Signal and Cache of a store on a Valkey or Redis server.

A module of its own, so that callers need not know the client and its sharing.
"""

from __future__ import annotations

from ortet.backends.base import Cache, Signal
from ortet.backends.valkey.address import VALKEY_SCHEMES, parse_valkey_url
from ortet.backends.valkey.cache import ValkeyCache
from ortet.backends.valkey.client import shared_client
from ortet.backends.valkey.signal import valkey_signal

__all__ = ["is_valkey", "open_cache", "open_signal"]


def is_valkey(url: str) -> bool:
    """Return True if `url` has a scheme of Valkey or Redis."""
    scheme, found, _ = url.partition("://")
    return bool(found) and scheme.lower() in VALKEY_SCHEMES


def open_signal(url: str, *, namespace: str) -> Signal:
    """Open the signal of the store with id `namespace`.

    Raise Refused if the server rejects the login. An unreachable server is not an error: the signal
    connects when the server is back.
    """
    address = parse_valkey_url(url)
    link = shared_client(address)
    try:
        return valkey_signal(address, namespace)
    finally:
        link.remove_user()


def open_cache(url: str, *, namespace: str) -> Cache:
    """Open the cache of the store with id `namespace`.

    Raise Refused if the server rejects the login. While the server is unreachable, the cache is
    empty.
    """
    return ValkeyCache(shared_client(parse_valkey_url(url)), namespace)
