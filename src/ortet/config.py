"""The only reader of the environment and of configuration files; turns a URL into a hub.

Only this module picks a concrete backend or engine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec

from ortet.errors import Invalid, NotFound, Unsupported
from ortet.ids import Clock, Random, SystemClock
from ortet.pointer import Pointer, find_pointer
from ortet.settings import Settings

if TYPE_CHECKING:
    from ortet.backend.abc import Bucket, Catalog
    from ortet.graph.tree import Trees
    from ortet.machine.abc import Engine
    from ortet.memory.embedders import Embedder
    from ortet.session.hub import Hub
    from ortet.store.objects import LocalObjects

MIB = 1 << 20

_LONGEST = 490
"""SQLite knows paths of 512 bytes, of which it needs some itself."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")

def store_url(
    url: str | os.PathLike[str] | None = None,
    *,
    cwd: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> str:
    """What was asked for, else $ORTET_URL, the nearest pointer, the user's data directory."""
    if url is not None:
        return os.fspath(url)
    if environ.get("ORTET_URL"):
        return environ["ORTET_URL"]
    pointer = find_pointer(cwd or here())
    if pointer is not None:
        return _seen_from(pointer.directory, pointer.url)
    data = environ.get("XDG_DATA_HOME", "")
    if not data.startswith("/"):  # the specification says to ignore a relative one
        if (place := home(environ)) is None:
            raise Invalid("no_home", "this user has no home directory: set ORTET_URL to a store")
        data = str(place / ".local" / "share")
    return f"{data}/ortet"


def _seen_from(directory: Path, url: str) -> str:
    """A pointer written by hand may name a store relative to itself."""
    is_path = _SCHEME.match(url) is None and not url.startswith("~")
    return str(directory / url) if is_path else url


def here() -> Path:
    """The working directory."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise NotFound(
            "no_directory", "the working directory was deleted: change to one that is there"
        ) from None


def home(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The user's home directory, if there is one."""
    try:
        return Path(environ.get("HOME") or Path.home())
    except RuntimeError:
        return None


def mcp_token(environ: Mapping[str, str] = os.environ) -> str:
    """What clients of `ortet mcp --http` must show; "" for nothing."""
    return environ.get("ORTET_MCP_TOKEN", "")


def names_store(pointer: Pointer, root: Path) -> bool:
    """Whether a pointer leads to the store at `root`."""
    place = store_path(_seen_from(pointer.directory, pointer.url))
    return os.path.realpath(place) == os.path.realpath(root)


def init_url(store: str | None, directory: Path, environ: Mapping[str, str] = os.environ) -> str:
    """The store `ortet init` uses: a broken pointer, which it replaces, does not stop it."""
    if store is None and not environ.get("ORTET_URL") and usable_pointer(directory) is None:
        above = directory.parent
        while above != above.parent and usable_pointer(above) is None:
            above = above.parent
        return store_url(None, cwd=above, environ=environ)
    return store_url(store, cwd=directory, environ=environ)


def usable_pointer(directory: Path) -> Pointer | None:
    """The nearest pointer, unless it is garbage; a store inside the directory is that too."""
    from ortet.session.places import keep_apart

    try:
        pointer = find_pointer(directory)
        if pointer is not None:
            place = store_path(_seen_from(pointer.directory, pointer.url))
            keep_apart(place, pointer.directory.resolve())
    except (Invalid, Unsupported):
        return None
    return pointer


def debugging(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether to show tracebacks."""
    return environ.get("ORTET_DEBUG", "") not in ("", "0")


def wanted_criu(environ: Mapping[str, str] = os.environ) -> str:
    """The CRIU that is to be used: a path, "off" for none, "" to look for one."""
    return environ.get("ORTET_CRIU", "")


def variable(name: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """For what only the command line asks about: pagers, colours."""
    return environ.get(name)


def store_path(url: str) -> Path:
    """The directory an embedded store's URL names."""
    scheme = _SCHEME.match(url)
    if not url:
        raise _bad_url(url, "it is empty")
    if scheme is None:
        try:
            return Path(url).expanduser().absolute()
        except RuntimeError as error:
            raise _bad_url(url, str(error)) from error
    name = scheme[1].lower()
    if name in ("postgresql", "postgres", "http", "https"):
        raise Unsupported(
            "backend_missing",
            f"this release of ortet has embedded stores only, not {name}://: give a directory",
        )
    if name != "file":
        raise _bad_url(url, f"unknown scheme {name}")
    return _file_path(url)


def _file_path(url: str) -> Path:
    parts = urlsplit(url)
    if parts.query.startswith(("bucket=", "signal=")):
        raise Unsupported(
            "backend_missing",
            "this release of ortet keeps an embedded store in one directory: leave bucket= and "
            "signal= out",
        )
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise _bad_url(url, "write file:///absolute/path, with ? as %3F and # as %23")
    path = unquote(parts.path, errors="surrogateescape")
    if not path.strip("/") or "\0" in path:
        raise _bad_url(url, "it names no directory")
    return Path(path)


def _bad_url(url: str, why: str) -> Invalid:
    return Invalid("bad_url", f"{url!r} is not a store ({why}): give a directory or a file:// URL")


def open_hub(
    url: str | os.PathLike[str] | None = None,
    *,
    cwd: Path | None = None,
    create: bool = True,
    watch: bool | None = None,
    alone: bool = False,
    clock: Clock | None = None,
    random: Random = os.urandom,
    environ: Mapping[str, str] = os.environ,
    embedder: Embedder | str | None = None,
) -> Hub:
    """Open the store, making it when it is not there and `create` is true.

    `watch` overrides the setting. `alone`: the process is ours, one command long; it looks once, so
    it needs no watcher, and it may fork to look faster. `embedder` finds memories by meaning, too;
    its name may stand in config.toml.
    """
    # here, so that asking this module for a pointer or a setting does not load a database
    from ortet.backend.cache import ProcessCache
    from ortet.backend.signals import HostSignal
    from ortet.graph.tree import Trees
    from ortet.session.hub import Hub
    from ortet.session.parts import Parts, encore_of, host_id, user_here
    from ortet.session.vaultkeys import VARIABLE, Keyring
    from ortet.swarm.lazy import LazySwarms

    _check_embedder(embedder)  # before anything is made
    root = store_path(store_url(url, cwd=cwd, environ=environ))
    exists = _prepare(root, create=create)
    settings = read_settings(root)
    clock = clock or SystemClock()
    catalog, bucket, objects = _backends(root, settings, clock=clock, random=random, exists=exists)
    trees, criu = Trees(objects), wanted_criu(environ)
    watch = not alone and (settings.watch if watch is None else watch)
    engine = _engines(objects, trees, clock, root=root, watch=watch, alone=alone, criu=criu)
    return Hub(
        Parts(
            root=root,
            catalog=catalog,
            bucket=bucket,
            signal=HostSignal(root / "local" / "signal"),
            objects=objects,
            trees=trees,
            engine=engine,
            strongest=lambda: _strongest(engine),
            clock=clock,
            random=random,
            author=_text(environ.get("ORTET_AUTHOR")) or settings.author or user_here(),
            host=host_id(),
            scope="host" if os.geteuid() == 0 else "workspace",
            hide=_secret_places(environ),
            encore=encore_of(environ),
            vault=Keyring(environ.get(VARIABLE, ""), _config_place(environ)),
            environ=environ,
            swarms=LazySwarms(open_hub),
            cache=ProcessCache(clock),
            embedder=settings.embedder if embedder is None else embedder,
        )
    )


def _check_embedder(embedder: Embedder | str | None) -> None:
    if embedder is not None:
        from ortet.memory.embedders import check_embedder

        check_embedder(embedder)


def _backends(
    root: Path, settings: Settings, *, clock: Clock, random: Random, exists: bool
) -> tuple[Catalog, Bucket, LocalObjects]:
    """The embedded store: rows in SQLite, packs in files."""
    from ortet.backend.files import FileBucket
    from ortet.backend.sqlite import SqliteCatalog
    from ortet.codec import Hasher
    from ortet.store.objects import LocalObjects
    from ortet.store.root import open_root

    hasher = Hasher(_key(settings, root))
    if exists:
        open_root(root, hasher)  # a format or a key that is not ours: touch nothing
    with ExitStack() as undo:
        # The catalog comes before FORMAT: where FORMAT is, a missing catalog is lost, not new.
        catalog = SqliteCatalog(root / "catalog.db", clock, create=not exists)
        undo.callback(catalog.close)
        bucket = FileBucket(root / "bucket")
        objects = LocalObjects(
            root,
            bucket,
            hasher=hasher,
            clock=clock,
            random=random,
            quota=settings.quota * MIB if settings.quota is not None else None,
            reserve=settings.reserve * MIB,
        )
        undo.pop_all()
    return catalog, bucket, objects


def _prepare(root: Path, *, create: bool) -> bool:
    """Make the directory if it may be made; returns whether a store is in it already."""
    from ortet.machine.dirs import failure
    from ortet.store.root import check_place

    if os.fsencode(root) != str(root).encode("utf-8", "replace"):
        raise _bad_url(str(root), "SQLite needs a path that is UTF-8")
    if len(os.fsencode(os.path.realpath(root))) > _LONGEST:
        raise _bad_url(str(root), f"SQLite needs a path of at most {_LONGEST} bytes")
    try:
        os.stat(root / "FORMAT")
        exists = True
    except (FileNotFoundError, NotADirectoryError):
        exists = False
    except OSError as error:  # it may be there, but is closed to us
        raise failure(error, f"cannot look into {root}") from error
    if not exists and not create:
        raise NotFound("no_store", f"there is no store at {root}: run `ortet init` first")
    if not exists:
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            check_place(root)
        except (FileExistsError, NotADirectoryError) as error:
            raise _bad_url(str(root), "a file is in the way") from error
        except OSError as error:
            raise failure(error, f"cannot make a store at {root}") from error
    return exists


def _engines(
    objects: LocalObjects,
    trees: Trees,
    clock: Clock,
    *,
    root: Path,
    watch: bool,
    alone: bool,
    criu: str,
) -> Callable[[str], Engine]:
    @cache
    def engine(name: str) -> Engine:
        if name == "folder":
            from ortet.machine.folder import FolderEngine

            return FolderEngine(objects, trees, clock, watch=watch, alone=alone)
        if name == "overlay":
            from ortet.machine.overlay import OverlayEngine

            return OverlayEngine(objects, trees, clock, root=root)
        if name == "criu":
            from ortet.machine.criu import CriuEngine

            return CriuEngine(objects, trees, clock, root=root, program=criu)
        raise Invalid("bad_engine", f"engine {name!r}: give auto, folder, overlay or criu")

    return engine


def _strongest(engine: Callable[[str], Engine]) -> str:
    return "overlay" if all(c.ok for c in engine("overlay").probe()) else "folder"


def read_settings(root: Path) -> Settings:
    file = root / "config.toml"
    if not os.path.lexists(file):
        return Settings()
    import tomllib

    try:
        values: dict[str, Any] = tomllib.loads(file.read_text("utf-8"))
        return msgspec.convert(values, Settings)
    except (OSError, ValueError) as error:  # all that toml, utf-8 and msgspec find are ValueErrors
        raise Invalid("bad_config", f"{file} cannot be used ({error}): correct it") from error


def _key(settings: Settings, root: Path) -> bytes | None:
    if settings.key_file is None:
        return None
    file = root / settings.key_file
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


def _text(value: str | None) -> str:
    """A variable of the environment, which may hold any bytes, as text."""
    return os.fsencode(value or "").decode("utf-8", "replace")


def _config_place(environ: Mapping[str, str]) -> Path | None:
    """Where a user's programs keep their settings; None without a home directory."""
    named = environ.get("XDG_CONFIG_HOME", "")
    if named.startswith("/"):
        return Path(named) / "ortet"
    place = home(environ)
    return None if place is None else place / ".config" / "ortet"


def _secret_places(environ: Mapping[str, str]) -> tuple[Path, ...]:
    from ortet.session.places import SECRET_PLACES

    top = home(environ)
    places = () if top is None else SECRET_PLACES
    return tuple(path for place in places if top and os.path.lexists(path := top / place))
