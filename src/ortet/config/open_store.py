"""Opens an embedded store (a directory) or a remote store (a server). Reads no environment."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import msgspec

from ortet._util.structs import thread_safe_struct
from ortet.config.settings import Settings
from ortet.errors import Invalid, NotFound, Refused, Unsupported
from ortet.ids import Clock, Random

if TYPE_CHECKING:
    from ortet.backends.base import Bucket, Cache, Catalog, Signal
    from ortet.backends.remote.protocol import Hello
    from ortet.memory.base import IndexFactory
    from ortet.objects.store import PackedObjectStore

MIB = 1 << 20

_MAX_PATH_BYTES = 490
"""SQLite allows paths of 512 bytes and needs some of them for suffixes."""

MARK_FILE, LOG_FILE = "local/catalog.mark", "local/catalog.log"
"""What the last transaction stored, and a second copy of names; see backends/sqlite."""

REMOTE_SCHEMES = ("http", "https")
_OPTIONS = ("token_file", "key_file")


class StoreBackends(NamedTuple):
    """The opened backends of a store. The local part is below `root`."""

    url: str
    root: Path
    host: str
    settings: Settings
    catalog: Catalog
    bucket: Bucket
    signal: Signal
    objects: PackedObjectStore
    cache: Cache | None = None  # shared between processes
    index_factory: IndexFactory | None = None  # memory index, if hosts share one


def open_embedded(root: Path, *, clock: Clock, random: Random, create: bool) -> StoreBackends:
    """Open a store in a directory: rows in SQLite, packs in files."""
    from ortet._util.codec import Hasher
    from ortet.backends.local.bucket import FileBucket
    from ortet.backends.local.signal import HostSignal
    from ortet.backends.object_storage.pending_uploads import PendingUploadTable
    from ortet.backends.sqlite.catalog import SqliteCatalog
    from ortet.objects.layout import open_layout
    from ortet.objects.store import PackedObjectStore
    from ortet.store.context import host_id

    exists = _prepare(root, create=create)
    settings = read_settings(root)
    hasher = Hasher(read_key(settings.key_file, root))
    if exists:
        open_layout(root, hasher)  # refuse another format or key before anything is changed
    with ExitStack() as undo:
        # The catalog is created before FORMAT. If FORMAT exists, a missing catalog is lost, not
        # new.
        catalog = SqliteCatalog(
            root / "catalog.db",
            clock,
            create=not exists,
            mark=root / MARK_FILE,
            log=root / LOG_FILE,
        )
        undo.callback(catalog.close)
        bucket = FileBucket(root / "bucket")
        objects = PackedObjectStore(
            root,
            bucket,
            hasher=hasher,
            clock=clock,
            random=random,
            quota=settings.quota * MIB if settings.quota is not None else None,
            reserve=settings.reserve * MIB,
            pending_uploads=PendingUploadTable(
                catalog, "", name="", clock=clock
            ),  # uploads of clients over HTTP
        )
        undo.pop_all()
    signal = HostSignal(root / "local" / "signal")
    return StoreBackends(str(root), root, host_id(), settings, catalog, bucket, signal, objects)


def open_remote(
    url: str, *, token: str, cache: Path, clock: Clock, random: Random
) -> StoreBackends:
    """Open a store behind `ortet serve`. Cached objects and machines are below `cache`."""
    from ortet._util.codec import Hasher, checksum
    from ortet.backends.object_storage.pending_uploads import PendingUploadTable
    from ortet.backends.remote.bucket import HttpBucket
    from ortet.backends.remote.catalog import HttpCatalog
    from ortet.backends.remote.client import RemoteClient
    from ortet.backends.remote.signal import HttpSignal
    from ortet.objects.remote.placement import open_remote_objects
    from ortet.store.context import host_id

    address, options = parse_remote_url(url)
    link = RemoteClient(address, token=read_token_file(options.get("token_file")) or token)
    catalog = HttpCatalog(link, clock, random=random)
    with ExitStack() as undo:
        undo.callback(catalog.close)
        hello = catalog.hello()
        catalog.epochs.observe(hello.epoch)
        root = make_cache_directory(cache, hello.store)
        settings = read_settings(root)
        hasher = Hasher(read_key(options.get("key_file") or settings.key_file, root))
        _check_hello(link.url, hello, hasher.key_id)
        bucket = HttpBucket(link)
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
            pending_uploads=PendingUploadTable(
                catalog, host, name=os.uname().nodename, clock=clock
            ),
        )
        undo.pop_all()
    return StoreBackends(url, root, host, settings, catalog, bucket, HttpSignal(link), objects)


def is_remote(url: str) -> bool:
    """Return True for the URL of a store behind a server (http:// or https://)."""
    return url.partition("://")[0].lower() in REMOTE_SCHEMES and "://" in url


def parse_remote_url(url: str) -> tuple[str, dict[str, str]]:
    """Return the address of the server, and the options after the question mark."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise Invalid("bad_url", f"this is no address of a server ({error})") from error
    if parts.username is not None or parts.password is not None:
        raise Invalid(  # the message does not repeat the password
            "bad_url",
            "an address holds no name, password or token, which would be seen in logs: set "
            "ORTET_TOKEN, or add ?token_file=PATH",
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    strange = [name for name in options if name not in _OPTIONS]
    if not parts.hostname or strange or parts.fragment or port == 0:
        raise Invalid(
            "bad_url",
            f"{url!r} is no address of a server: write http://HOST:PORT, and behind it at most "
            f"?{'=…&'.join(_OPTIONS)}=…",
        )
    return f"{parts.scheme.lower()}://{parts.netloc}{parts.path.rstrip('/')}", options


def read_token_file(file: str | None) -> str:
    """Return the token in `file`, or "" if no file is given."""
    if file is None:
        return ""
    path = Path(file).expanduser()
    try:
        return path.read_text().strip()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise Refused(
            "no_token", f"the token in {path} cannot be read ({why}): put it there"
        ) from None


def make_cache_directory(cache: Path, store: str) -> Path:
    """Create and return the local directory for the store with id `store`."""
    from ortet.machines.dirfd import translate_os_error

    if not store.isalnum():
        raise Unsupported("bad_answer", "the server gave its store a strange id: upgrade ortet")
    root = cache / "remote" / store
    _check_path_length(root)
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise translate_os_error(error, f"cannot make {root}") from error
    return root


def _check_hello(url: str, hello: Hello, key_id: bytes) -> None:
    from ortet._util.codec import FORMAT_VERSION

    if hello.format > FORMAT_VERSION:
        raise Unsupported(
            "newer_format",
            f"{url} has format {hello.format}, this ortet knows {FORMAT_VERSION}: upgrade ortet",
        )
    if hello.key_id != key_id:
        raise Refused(
            "wrong_key",
            f"{url} has a store with key {hello.key_id.hex()}, not {key_id.hex()}: add "
            "?key_file=PATH with a copy of the store's key",
        )


def _check_path_length(root: Path) -> None:
    if len(os.fsencode(os.path.realpath(root))) > _MAX_PATH_BYTES:
        raise bad_url(str(root), f"SQLite needs a path of at most {_MAX_PATH_BYTES} bytes")


def bad_url(url: str, why: str) -> Invalid:
    """Return the error for a URL that does not name a store."""
    return Invalid("bad_url", f"{url!r} is not a store ({why}): give a directory or a file:// URL")


def _prepare(root: Path, *, create: bool) -> bool:
    """Create the directory of a store if allowed. Return True if it already holds a store."""
    from ortet.machines.dirfd import translate_os_error
    from ortet.objects.layout import check_directory

    if os.fsencode(root) != str(root).encode("utf-8", "replace"):
        raise bad_url(str(root), "SQLite needs a path that is UTF-8")
    _check_path_length(root)
    try:
        os.stat(root / "FORMAT")
        exists = True
    except (FileNotFoundError, NotADirectoryError):
        exists = False
    except OSError as error:  # it may exist, but is not accessible
        raise translate_os_error(error, f"cannot look into {root}") from error
    if not exists and not create:
        raise NotFound("no_store", f"there is no store at {root}: run `ortet init` first")
    if not exists:
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            check_directory(root)
        except (FileExistsError, NotADirectoryError) as error:
            raise bad_url(str(root), "a file is in the way") from error
        except OSError as error:
            raise translate_os_error(error, f"cannot make a store at {root}") from error
    return exists


def read_settings(root: Path) -> Settings:
    """Read config.toml in the directory of a store. Raise Invalid("bad_config")."""
    file = root / "config.toml"
    if not os.path.lexists(file):
        return Settings()
    import tomllib

    try:
        values: dict[str, Any] = tomllib.loads(file.read_text("utf-8"))
        return msgspec.convert(values, thread_safe_struct(Settings))
    except (OSError, ValueError) as error:  # errors of toml, utf-8 and msgspec are all ValueErrors
        raise Invalid("bad_config", f"{file} cannot be used ({error}): correct it") from error


def read_key(name: str | None, root: Path) -> bytes | None:
    """Read the hashing key of a store from a file; None if no file is configured."""
    if name is None:
        return None
    file = root / name
    try:
        key = bytes.fromhex(file.read_text().strip())
        if len(key) != 32:
            raise ValueError(f"it holds {len(key)} bytes")
    except (OSError, ValueError) as error:
        raise Invalid(
            "bad_key",
            f"key file {file} cannot be used ({error}): put 64 hexadecimal digits there, or "
            "correct key_file in config.toml",
        ) from error
    return key
