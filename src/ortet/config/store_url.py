"""URLs of stores reached over a network: comparison, checks, and the list of trusted stores.

This module reads no environment.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from ortet.config.open_shared_store import is_shared, parse_shared_url
from ortet.config.open_store import is_remote, parse_remote_url
from ortet.errors import Invalid, Refused

_LOCATION_OPTIONS = ("host", "hostaddr", "port", "dbname", "service")
"""Driver options that determine which database is meant."""

_TRUSTED_STORES_FILE = "stores"


def is_networked(url: str) -> bool:
    """Return True if a store is reached over a network, and so has no directory on this host."""
    return is_remote(url) or is_shared(url)


def canonical_store_name(url: str) -> str:
    """Return a text that is equal for all URLs of one store.

    It leaves out the user and the options for the connection.
    """
    if is_remote(url):
        return parse_remote_url(url)[0]
    address = parse_shared_url(url)
    parts = urlsplit(address.database)
    where = [f"{key}={value}" for key, value in parse_qsl(parts.query) if key in _LOCATION_OPTIONS]
    place = f"{parts.hostname or ''}:{parts.port or ''}{parts.path}"
    bucket = address.bucket.partition("?")[0]
    return " ".join(["postgresql", place, *sorted(where), f"schema={address.schema}", bucket])


def is_same_store(first: str, second: str) -> bool:
    """Return True if two URLs of network stores mean the same store."""
    return canonical_store_name(first) == canonical_store_name(second)


def check_pointer_url(url: str) -> None:
    """Raise Invalid for a URL with a password: other users may read a pointer file."""
    canonical_store_name(url)  # rejects a password of the database or server
    address = parse_shared_url(url) if is_shared(url) else None
    if "\n" in url or "\r" in url:
        raise Invalid("bad_url", "an address is one line: take the line break out")
    valkeys = (address.signal, address.cache) if address is not None else ()
    if any(urlsplit(valkey).password for valkey in valkeys):
        raise Invalid(
            "bad_url",
            "signal= or cache= holds a password, and .ortet may be read by others: put it into a "
            "file, and write ?password_file=PATH in the address of Valkey",
        )


def trust_store(url: str, directory: Path | None) -> None:
    """Record that this user trusts a store. Pointer files that name it are followed from now on."""
    if directory is None or is_trusted(url, directory):
        return
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    line = f"{canonical_store_name(url)}\n".encode()
    number = os.open(
        directory / _TRUSTED_STORES_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
    )
    try:
        os.write(number, line)
    finally:
        os.close(number)


def is_trusted(url: str, directory: Path | None) -> bool:
    """Return True if this user has trusted the store before."""
    if directory is None:
        return False
    with suppress(OSError):
        return (
            canonical_store_name(url)
            in (directory / _TRUSTED_STORES_FILE).read_text("utf-8").splitlines()
        )
    return False


def check_trusted(url: str, file: Path, directory: Path | None) -> None:
    """Raise Refused for a store that a pointer file names and this user has never trusted.

    The file may come from a downloaded archive. Its store would receive this user's password or
    token.
    """
    if not is_trusted(url, directory):
        shown = url.partition("?")[0]
        raise Refused(
            "unknown_store",
            f"{file} names the store {shown}, which you have not used from here yet: if you trust "
            f"it, run `ortet init --store '{url}'` in {file.parent}, or set ORTET_URL to it",
        )
