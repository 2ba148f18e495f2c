"""Opens a store that many hosts share: rows in PostgreSQL, packs in a bucket, wake-ups by Valkey.

This module reads no environment.
"""

from __future__ import annotations

import os
import re
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit

import msgspec

from ortet._util.structs import thread_safe_struct
from ortet.config.open_store import (
    MIB,
    StoreBackends,
    make_cache_directory,
    read_key,
    read_settings,
)
from ortet.errors import Conflict, Corrupt, Invalid, NotFound, Refused, Unsupported
from ortet.ids import Clock, Random

if TYPE_CHECKING:
    from ortet.backends.base import Bucket, Cache, Catalog, Signal
    from ortet.backends.postgres.catalog import PostgresCatalog
    from ortet.backends.postgres.pool import PostgresDatabase

SHARED_SCHEMES = ("postgresql", "postgres")
_OPTIONS = ("bucket", "durable", "signal", "cache", "schema", "connections", "key_file")
_SECRETS = {"password", "sslpassword", "oauth_client_secret"}
_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:\d*)?")
_MAX_SCHEMA_BYTES = 63  # PostgreSQL truncates longer names
_STORE_ID_ROW = ("store", "id")
_FORMAT = ("store", "format")
_BUCKET_ROW = ("store", "bucket")
_STORE_MARK_PREFIX = "stores/"


class SharedStoreAddress(msgspec.Struct, frozen=True):
    """The parsed URL of a shared store. `database` is the part for the driver."""

    database: str
    bucket: str
    durable: Literal["remote", "local"] = "remote"  # where a commit is durable when it returns
    signal: str = ""
    cache: str = ""  # a separate server for the cache; default: that of the signal
    schema: str = "ortet"
    connections: int = 16
    key_file: str | None = None


class _StoreFormat(msgspec.Struct, frozen=True):
    """The contents of the FORMAT file of an embedded store, here as a catalog row."""

    format: int
    key_id: bytes


def is_shared(url: str) -> bool:
    """Return True for the URL of a shared store (postgresql://)."""
    return "://" in url and url.partition("://")[0].lower() in SHARED_SCHEMES


def parse_shared_url(url: str) -> SharedStoreAddress:
    """Parse the URL of a shared store. Options that are not ours are passed to the driver.

    Raise Invalid("bad_url") for a malformed URL, or one that contains a password.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise Invalid("bad_url", f"this is no address of a database ({error})") from error
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    if parts.password is not None or not _SECRETS.isdisjoint(dict(pairs)):
        raise Invalid(  # the message does not repeat the password
            "bad_url",
            "an address holds no password, which would be seen in logs: put it into ~/.pgpass, add "
            "&passfile=PATH, or set PGPASSWORD",
        )
    ours = {name: value for name, value in pairs if name in _OPTIONS}
    rest = urlencode([pair for pair in pairs if pair[0] not in _OPTIONS], quote_via=quote, safe="/")
    _check_hosts(parts.netloc, parts.path)
    if not ours.get("bucket"):
        raise _no_bucket(pairs)
    _check_options(ours)
    return msgspec.convert(
        {**ours, "database": replace_query(parts, rest)},
        thread_safe_struct(SharedStoreAddress),
        strict=False,
    )


def replace_query(parts: SplitResult, query: str) -> str:
    """Return the URL with another query.

    `urlunsplit` would remove slashes of postgresql:///DATABASE.
    """
    end = f"#{parts.fragment}" if parts.fragment else ""
    return f"{parts.scheme}://{parts.netloc}{parts.path}{query and '?'}{query}{end}"


def _check_hosts(hosts: str, path: str) -> None:
    """Reject hosts that the driver would misread and then fail to reach."""
    if not all(_HOST.fullmatch(host) for host in hosts.rpartition("@")[2].split(",")):
        raise Invalid(
            "bad_url",
            "this is no address of a database: write HOST:PORT with a number, and an IPv6 address "
            "in brackets, as [::1]:5432",
        )
    if any(f"&{name}=" in path for name in _OPTIONS):
        raise Invalid(
            "bad_url",
            "the first option of an address comes after ? and not after &: write "
            "postgresql://HOST/DATABASE?bucket=…",
        )


def _no_bucket(pairs: list[tuple[str, str]]) -> Invalid:
    if any("?bucket=" in value for _, value in pairs):
        return Invalid(
            "bad_url",
            "only the first option of an address comes after ?, and each further one after &: "
            "write …&bucket=…",
        )
    mark = "&" if pairs else "?"
    return Invalid(
        "bad_url",
        f"a store in PostgreSQL needs a place for its files: add {mark}bucket=s3://BUCKET/PREFIX, "
        f"or {mark}bucket=file:///DIRECTORY where all its hosts see that directory",
    )


def _check_options(options: dict[str, str]) -> None:
    durable, connections = options.get("durable", "remote"), options.get("connections", "1")
    schema = options.get("schema", "ortet")
    if durable not in ("remote", "local"):
        raise Invalid("bad_url", f"durable={durable} in the address: give remote or local")
    if not re.fullmatch("0*[1-9][0-9]{0,5}", connections, re.ASCII):
        raise Invalid(
            "bad_url", f"connections={connections} in the address: give a number from 1 on"
        )
    if not schema or schema.lower().startswith("pg_") or len(schema.encode()) > _MAX_SCHEMA_BYTES:
        raise Invalid(
            "bad_url",
            f"schema={schema} in the address: give a name of at most {_MAX_SCHEMA_BYTES} bytes "
            "that does "
            "not begin with pg_, which PostgreSQL keeps for itself",
        )


def open_signal(url: str, *, namespace: str, database: PostgresDatabase) -> Signal:
    """Open the signal: Valkey or Redis if `url` is given, otherwise PostgreSQL notifications."""
    if not url:
        from ortet.backends.postgres.notify import postgres_signal

        return postgres_signal(database, namespace)
    from ortet.backends.valkey import signal

    return signal.open_signal(url, namespace=namespace)


def open_shared_cache(url: str, *, namespace: str) -> Cache | None:
    """Open the shared cache in Valkey or Redis; None if there is no `url`."""
    if not url:
        return None
    from ortet.backends.valkey import cache

    return cache.open_cache(url, namespace=namespace)


def open_shared(
    url: str, *, cache: Path, clock: Clock, random: Random, create: bool
) -> StoreBackends:
    """Open a shared store. Cached objects and machines of this host are below `cache`."""
    from ortet._util.codec import Hasher, checksum
    from ortet.backends.buckets import open_bucket
    from ortet.backends.object_storage.pending_uploads import PendingUploadTable
    from ortet.memory.postgres.index_factory import PostgresIndexFactory
    from ortet.objects.remote.placement import open_remote_objects
    from ortet.store.context import host_id

    address = parse_shared_url(url)
    bucket = open_bucket(address.bucket)
    with ExitStack() as undo:
        undo.callback(bucket.close)
        catalog = _open_catalog(address, clock, create=create)
        undo.callback(catalog.close)
        store = _read_or_create_store_id(catalog, create=create)
        root = make_cache_directory(cache, store)
        settings = read_settings(root)
        hasher = Hasher(read_key(address.key_file or settings.key_file, root))
        _check_format(catalog, hasher.key_id)
        # Machines are in `root`: with another user or another cache, they belong to another host.
        host = checksum(f"{host_id()}\n{root}".encode()).hex()
        objects = open_remote_objects(
            root,
            bucket,
            epochs=catalog.epochs,
            hasher=hasher,
            clock=clock,
            random=random,
            reserve=settings.reserve * MIB,
            durable=address.durable,
            pending_uploads=PendingUploadTable(
                catalog, host, name=os.uname().nodename, clock=clock
            ),
        )
        undo.callback(objects.close)
        seen = objects.layout.local / "bucket-seen"
        _check_bucket(catalog, bucket, store, seen, address.bucket)
        shared = open_shared_cache(address.cache or address.signal, namespace=store)
        undo.callback(shared.close if shared is not None else lambda: None)
        signal = open_signal(address.signal, namespace=store, database=catalog.database)
        undo.pop_all()
    index_factory = PostgresIndexFactory(catalog.client)
    return StoreBackends(
        url, root, host, settings, catalog, bucket, signal, objects, shared, index_factory
    )


def _open_catalog(address: SharedStoreAddress, clock: Clock, *, create: bool) -> PostgresCatalog:
    try:
        from ortet.backends.postgres.catalog import PostgresCatalog
    except ImportError as error:
        raise Unsupported(
            "extra_missing",
            f'a store in PostgreSQL needs psycopg ({error}): pip install "ortet[postgres]"',
        ) from error
    try:
        return PostgresCatalog(
            address.database,
            clock,
            schema=address.schema,
            connections=address.connections,
            create=create,
        )
    except Corrupt as error:
        raise _no_store() if error.kind == "no_catalog" else error from None


def _read_or_create_store_id(catalog: Catalog, *, create: bool) -> str:
    """Return the id of the store. The first process that opens the store creates it."""
    row = catalog.row(*_STORE_ID_ROW)
    if row is None:
        if not create:
            raise _no_store()
        with suppress(Conflict):  # another process created it first
            catalog.put_row(*_STORE_ID_ROW, os.urandom(16).hex().encode(), expect=0)
        return _read_or_create_store_id(catalog, create=False)
    return row.value.decode()


def _no_store() -> NotFound:
    return NotFound(
        "no_store",
        "there is no store in this database: begin one with `ortet session new`, or by ortet.open",
    )


def _check_format(catalog: Catalog, key_id: bytes) -> None:
    """Refuse a store that is newer or has another key, before anything is changed."""
    from ortet._util.codec import FORMAT_VERSION

    row = catalog.row(*_FORMAT)
    if row is None:
        with suppress(Conflict):
            expected = msgspec.msgpack.encode(_StoreFormat(FORMAT_VERSION, key_id))
            catalog.put_row(*_FORMAT, expected, expect=0)
        return _check_format(catalog, key_id)
    stored = msgspec.msgpack.decode(row.value, type=thread_safe_struct(_StoreFormat))
    if stored.format > FORMAT_VERSION:
        raise Unsupported(
            "newer_format",
            f"this store has format {stored.format}, this ortet knows {FORMAT_VERSION}: upgrade "
            "ortet",
        )
    if stored.key_id != key_id:
        raise Refused(
            "wrong_key",
            f"this store has key {stored.key_id.hex()}, not {key_id.hex()}: add &key_file=PATH "
            "with a copy of the store's key",
        )
    return None


def _check_bucket(
    catalog: Catalog, bucket: Bucket, store: str, checked_file: Path, url: str
) -> None:
    """Check that the bucket holds the packs of this store and not those of another one.

    The check is done once per host. For a directory it is done at each open, because the directory
    may not be mounted.
    """
    is_directory = url.lower().startswith("file:")
    if not is_directory and checked_file.exists() and checked_file.read_text("utf-8") == url:
        return
    place = catalog.row(*_BUCKET_ROW)
    begun = place is not None or bool(catalog.heads(limit=1))
    marks = [
        found.key for found in bucket.list(_STORE_MARK_PREFIX)
    ]  # read after the row: the mark is written before the row
    if marks and f"{_STORE_MARK_PREFIX}{store}" not in marks:
        raise Invalid(
            "wrong_bucket",
            "this bucket holds the files of another store: give the bucket of this one, or another "
            "prefix",
        )
    if not marks:
        if begun:
            raise _wrong_bucket(url, place.value.decode() if place is not None else "")
        with suppress(Conflict):
            bucket.put(f"{_STORE_MARK_PREFIX}{store}", b"")
    if place is None:
        with suppress(Conflict):
            catalog.put_row(*_BUCKET_ROW, url.partition("?")[0].encode(), expect=0)
    checked_file.write_text(url, "utf-8")


def _wrong_bucket(url: str, first_bucket: str) -> Invalid:
    """Return the error for a bucket without this store: other hosts would not find its commits."""
    began = f", and it began with {first_bucket}" if first_bucket else ""
    return Invalid(
        "wrong_bucket",
        f"nothing of this store is in {url.partition('?')[0]}{began}: correct bucket= (its name "
        "and prefix; a directory has to be mounted), or copy all of the old bucket there first",
    )
