"""Stores that are not in a directory: which addresses mean the same one, which may be written into
a file, and which this user has chosen. Reads no environment."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from ortet.config.open_shared_store import address_of, is_shared
from ortet.config.open_store import is_remote, remote_address
from ortet.errors import Invalid, Refused

_WHERE = ("host", "hostaddr", "port", "dbname", "service")
"""What a driver takes behind the question mark that says which database is meant."""

_CHOSEN = "stores"


def is_elsewhere(url: str) -> bool:
    """Whether a store is reached over a network: it has no directory of its own here."""
    return is_remote(url) or is_shared(url)


def store_named(url: str) -> str:
    """The same text for all addresses of one store: without its user, and how it is reached."""
    if is_remote(url):
        return remote_address(url)[0]
    address = address_of(url)
    parts = urlsplit(address.database)
    where = [f"{key}={value}" for key, value in parse_qsl(parts.query) if key in _WHERE]
    place = f"{parts.hostname or ''}:{parts.port or ''}{parts.path}"
    bucket = address.bucket.partition("?")[0]
    return " ".join(["postgresql", place, *sorted(where), f"schema={address.schema}", bucket])


def same_store(one: str, other: str) -> bool:
    """Whether two addresses that are elsewhere mean the same store."""
    return store_named(one) == store_named(other)


def check_writable(url: str) -> None:
    """Invalid for an address with a password in it: a pointer can be read by others."""
    store_named(url)  # refuses those of the database and of a server
    address = address_of(url) if is_shared(url) else None
    if "\n" in url or "\r" in url:
        raise Invalid("bad_url", "an address is one line: take the line break out")
    valkeys = (address.signal, address.cache) if address is not None else ()
    if any(urlsplit(valkey).password for valkey in valkeys):
        raise Invalid(
            "bad_url",
            "signal= or cache= holds a password, and .ortet may be read by others: put it into a "
            "file, and write ?password_file=PATH in the address of Valkey",
        )


def choose(url: str, place: Path | None) -> None:
    """This user wants to use this store: from now on a pointer that names it is followed."""
    if place is None or is_chosen(url, place):
        return
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    line = f"{store_named(url)}\n".encode()
    number = os.open(place / _CHOSEN, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(number, line)
    finally:
        os.close(number)


def is_chosen(url: str, place: Path | None) -> bool:
    if place is None:
        return False
    with suppress(OSError):
        return store_named(url) in (place / _CHOSEN).read_text("utf-8").splitlines()
    return False


def check_chosen(url: str, file: Path, place: Path | None) -> None:
    """Refused for a store that only a file names, which may have come with somebody's archive: it
    would be sent this user's password or token."""
    if not is_chosen(url, place):
        shown = url.partition("?")[0]
        raise Refused(
            "unknown_store",
            f"{file} names the store {shown}, which you have not used from here yet: if you trust "
            f"it, run `ortet init --store '{url}'` in {file.parent}, or set ORTET_URL to it",
        )
