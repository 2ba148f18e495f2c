"""Checks of `ortet doctor`: can this host use the servers of a remote or shared store?

Each server is tried with real requests. No store is created. This module reads no environment.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from ortet.backends.object_storage.url import BUCKET_SCHEMES
from ortet.config.open_shared_store import parse_shared_url
from ortet.config.open_store import is_remote, parse_remote_url, read_token_file
from ortet.errors import Conflict, NotFound, OrtetError
from ortet.machines.base import Capability

if TYPE_CHECKING:
    from ortet.backends.base import Bucket

PROBE_PREFIX = "doctor/"
"""The prefix for test objects in a bucket. No object of a store has it."""

_MIN_CACHE_BYTES = 4 << 30
"""Space for cached objects of a store, and as much again for objects waiting to be uploaded."""
_PROBE_TIMEOUT_SECONDS = 5.0
_SIGNAL_DOWN_HINT = (
    "start it, or leave it out of the address; meanwhile hosts look for news once a second"
)
_PING_SAMPLES = 3


def examine_servers(url: str, *, cache: Path, token: str = "") -> list[Capability]:
    """Return one check result for each thing that a store at this URL needs."""
    if is_remote(url):
        return [_check_remote_server(url, token), _check_cache(cache)]
    from ortet.config.server_checks import examine_database

    address = parse_shared_url(url)
    found = examine_database(address)
    found.append(
        _run_check("bucket", lambda: _check_bucket(address.bucket), "see the address after bucket=")
    )
    for name, valkey in (("valkey", address.signal), ("valkey cache", address.cache)):
        if valkey:
            found.append(_run_check(name, partial(_check_valkey, name, valkey), _SIGNAL_DOWN_HINT))
    if not address.signal:
        what = "none, and none is needed: the database wakes hosts, and they share no cache"
        found.append(Capability("valkey", True, what))
    return [*found, _check_cache(cache)]


def _run_check(name: str, check: Callable[[], Capability], fix: str) -> Capability:
    """Run one check and turn its error into a failed result.

    The messages of our errors have the form "problem: remedy".
    """
    try:
        return check()
    except OrtetError as error:
        what, _, todo = str(error).rpartition(": ")
        return Capability(name, False, what or str(error), todo if what else fix)
    except OSError as error:
        return Capability(name, False, str(error), fix)


def _check_bucket(url: str) -> Capability:
    """Check a bucket. Its server must support exclusive create.

    Exclusive create prevents two hosts from writing the same pack.
    """
    if not url.startswith(tuple(f"{scheme}://" for scheme in BUCKET_SCHEMES)):
        path = Path(unquote(urlsplit(url).path))
        if url.startswith("file:///") and not path.is_dir():
            what = f"{path} is not there yet: it is made with the store"
            return Capability("bucket", True, what)
        from ortet.backends.buckets import open_bucket

        return _probe_bucket(open_bucket(url), str(path))
    from ortet.backends.object_storage.bucket import S3Bucket

    bucket = S3Bucket(
        url, retry_seconds=_PROBE_TIMEOUT_SECONDS, read_timeout=_PROBE_TIMEOUT_SECONDS
    )
    return _probe_bucket(bucket, str(bucket.address))


def _probe_bucket(bucket: Bucket, where: str) -> Capability:
    key, data = f"{PROBE_PREFIX}{os.urandom(8).hex()}", os.urandom(64)
    began = time.perf_counter()
    bucket.put(key, data)
    took = time.perf_counter() - began
    try:
        try:
            bucket.put(key, os.urandom(64))
        except Conflict:
            pass
        else:
            fix = "use one that knows If-None-Match, as S3 does, or a newer release of it"
            what = f"{where} lets one host write over what another has put"
            return Capability("bucket", False, what, fix)
        if bucket.get(key, 8, 16) != data[8:24]:
            return Capability("bucket", False, f"{where} gives wrong ranges", "use another server")
        if key not in {found.key for found in bucket.list(PROBE_PREFIX)}:
            return Capability("bucket", False, f"{where} does not list what it has", "allow List")
    finally:
        bucket.delete([key])
    try:
        bucket.size(key)
    except NotFound:
        return Capability("bucket", True, f"{where}, a put takes {took * 1000:.0f} ms")
    finally:
        bucket.close()
    return Capability("bucket", False, f"{where} does not delete", "allow Delete: a sweep needs it")


def _check_valkey(name: str, url: str) -> Capability:
    from ortet.backends.valkey.client import ValkeyClient
    from ortet.backends.valkey.valkeyaddress import parse_valkey_url as parsed

    link = ValkeyClient(parsed(url), answer_timeout=_PROBE_TIMEOUT_SECONDS)
    link.check_login()  # raises a clear error if the login is refused
    line = link.connect(_PROBE_TIMEOUT_SECONDS)
    try:
        told = _fields(line.call("INFO", "server")) | _fields(line.call("INFO", "memory"))
        times = []
        for _ in range(_PING_SAMPLES):
            began = time.perf_counter()
            line.call("PING")
            times.append(time.perf_counter() - began)
    except link.connection_errors as error:
        why = " ".join(str(error).split())
        return Capability(name, False, f"{link.address} does not answer ({why})", _SIGNAL_DOWN_HINT)
    finally:
        line.close()
    version = told.get("valkey_version") or told.get("redis_version", "?")
    detail = f"{version}, {min(times) * 1000:.1f} ms"
    if told.get("maxmemory", "0") == "0":
        detail += ", no limit of its memory"
    return Capability(name, True, detail)


def _fields(info: Any) -> dict[str, str]:
    pairs = (line.partition(":") for line in info.decode().splitlines())
    return {name: value.strip() for name, mark, value in pairs if mark}


def _check_cache(directory: Path) -> Capability:
    """Check the cache directory: it is writable and has enough space.

    It holds the objects read by this host, and with durable=local those not uploaded yet.
    """
    at = directory
    while not at.exists() and at != at.parent:
        at = at.parent
    if not at.is_dir() or not os.access(at, os.W_OK | os.X_OK):
        fix = "set XDG_CACHE_HOME to a directory that you may write"
        return Capability("cache", False, f"{directory} cannot be written", fix)
    free = shutil.disk_usage(at).free
    detail = f"{directory}, {free / (1 << 30):.1f} GiB free"
    if free < _MIN_CACHE_BYTES:
        fix = f"give it {_MIN_CACHE_BYTES >> 30} GiB, or set XDG_CACHE_HOME to a larger disk"
        return Capability("cache", False, detail, fix)
    return Capability("cache", True, detail)


def _check_remote_server(url: str, token: str) -> Capability:
    def look() -> Capability:
        from ortet.backends.remote.catalog import HttpCatalog
        from ortet.backends.remote.client import RemoteClient
        from ortet.ids import SystemClock

        address, options = parse_remote_url(url)
        link = RemoteClient(address, token=read_token_file(options.get("token_file")) or token)
        catalog = HttpCatalog(link, SystemClock(), random=os.urandom)
        try:
            began = time.perf_counter()
            hello = catalog.hello()
            took = time.perf_counter() - began
        finally:
            catalog.close()
        return Capability("server", True, f"format {hello.format}, {took * 1000:.0f} ms")

    return _run_check("server", look, "check that `ortet serve` runs there")
