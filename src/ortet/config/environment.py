"""Reads the environment, finds the store URL, and opens the hub.

Below the surfaces, other modules get their settings as arguments. Only this package chooses a
concrete backend or engine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from ortet.config.open_shared_store import SHARED_SCHEMES, is_shared, open_shared
from ortet.config.open_store import (
    REMOTE_SCHEMES,
    StoreBackends,
    bad_url,
    is_remote,
    open_embedded,
    open_remote,
    read_settings,
)
from ortet.config.pointer_file import POINTER, Pointer, find_pointer
from ortet.config.settings import Settings
from ortet.config.store_url import check_trusted, is_networked, is_same_store
from ortet.errors import Invalid, NotFound, Refused, Unsupported
from ortet.ids import Clock, Random, SystemClock

if TYPE_CHECKING:
    from ortet.history.tree.tree import Trees
    from ortet.hub.hub import Hub
    from ortet.machines.base import Engine
    from ortet.memory.embedders.base import Embedder
    from ortet.objects.store import PackedObjectStore

__all__ = ["Settings", "open_hub", "read_settings", "store_path", "store_url"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


def store_url(
    url: str | os.PathLike[str] | None = None,
    *,
    cwd: Path | None = None,
    environ: Mapping[str, str] = os.environ,
) -> str:
    """Return the URL of the store to use.

    The order is: `url`, $ORTET_URL, the nearest `.ortet` pointer file, the user's data directory.
    """
    if url is not None:
        return os.fspath(url)
    if environ.get("ORTET_URL"):
        return environ["ORTET_URL"]
    pointer = find_pointer(cwd or working_directory())
    if pointer is not None:
        if is_networked(pointer.url):
            check_trusted(pointer.url, pointer.directory / POINTER, config_directory(environ))
        return _resolve_pointer_url(pointer.directory, pointer.url)
    data = environ.get("XDG_DATA_HOME", "")
    if not data.startswith("/"):  # the XDG specification says to ignore a relative path
        if (place := home_directory(environ)) is None:
            raise Invalid("no_home", "this user has no home directory: set ORTET_URL to a store")
        data = str(place / ".local" / "share")
    return f"{data}/ortet"


def _resolve_pointer_url(directory: Path, url: str) -> str:
    """Resolve a store path in a pointer file relative to that file."""
    is_path = _SCHEME.match(url) is None and not url.startswith("~")
    return str(directory / url) if is_path else url


def working_directory() -> Path:
    """Return the working directory. Raise NotFound if it was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise NotFound(
            "no_directory", "the working directory was deleted: change to one that is there"
        ) from None


def home_directory(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the user's home directory, or None."""
    try:
        return Path(environ.get("HOME") or Path.home())
    except RuntimeError:
        return None


def mcp_token(environ: Mapping[str, str] = os.environ) -> str:
    """Return the token that clients of `ortet mcp --http` must send; "" if none is set."""
    return environ.get("ORTET_MCP_TOKEN", "")


def is_pointer_to(pointer: Pointer, url: str) -> bool:
    """Return True if a pointer names the store at `url`."""
    named = _resolve_pointer_url(pointer.directory, pointer.url)
    if is_networked(named) or is_networked(url):
        return is_networked(named) and is_networked(url) and is_same_store(named, url)
    return os.path.realpath(store_path(named)) == os.path.realpath(store_path(url))


def init_url(store: str | None, directory: Path, environ: Mapping[str, str] = os.environ) -> str:
    """Return the URL of the store that `ortet init` uses.

    A broken pointer file is ignored, because `ortet init` replaces it.
    """
    if (
        store is None
        and not environ.get("ORTET_URL")
        and find_usable_pointer(directory, environ) is None
    ):
        above = directory.parent
        while above != above.parent and find_usable_pointer(above, environ) is None:
            above = above.parent
        return store_url(None, cwd=above, environ=environ)
    return store_url(store, cwd=directory, environ=environ)


def find_usable_pointer(directory: Path, environ: Mapping[str, str] = os.environ) -> Pointer | None:
    """Return the nearest pointer, or None if it is unusable.

    A pointer is unusable if it is malformed or if its store lies inside the directory. It is also
    unusable if it names a network store that this user has never trusted.
    """
    from ortet.workspaces.table import check_outside_store

    try:
        pointer = find_pointer(directory)
        if pointer is not None and is_networked(pointer.url):
            check_trusted(pointer.url, pointer.directory / POINTER, config_directory(environ))
        elif pointer is not None:
            place = store_path(_resolve_pointer_url(pointer.directory, pointer.url))
            check_outside_store(place, pointer.directory.resolve())
    except (Invalid, Refused, Unsupported):
        return None
    return pointer


def is_debug(environ: Mapping[str, str] = os.environ) -> bool:
    """Return True if errors are shown with tracebacks."""
    return environ.get("ORTET_DEBUG", "") not in ("", "0")


def criu_setting(environ: Mapping[str, str] = os.environ) -> str:
    """Return the CRIU to use: a path, "off" for none, or "" to search for one."""
    return environ.get("ORTET_CRIU", "")


def read_variable(name: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return an environment variable, or None."""
    return environ.get(name)


def store_path(url: str) -> Path:
    """Return the directory of an embedded store. Raise Unsupported for other kinds of store."""
    scheme = _SCHEME.match(url)
    if not url:
        raise bad_url(url, "it is empty")
    if scheme is None:
        try:
            return Path(url).expanduser().absolute()
        except RuntimeError as error:
            raise bad_url(url, str(error)) from error
    name = scheme[1].lower()
    if name in (*REMOTE_SCHEMES, *SHARED_SCHEMES):
        raise Unsupported(
            "remote_store", f"a store at {name}:// has no directory here: do this at the server"
        )
    if name != "file":
        shown = f"{name}://…" if "@" in url else url  # the URL may contain a password
        raise bad_url(
            shown,
            f"unknown scheme {name}; a server is http:// or https://, what many hosts share is "
            "postgresql://HOST/DATABASE?bucket=…",
        )
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
        raise bad_url(url, "write file:///absolute/path, with ? as %3F and # as %23")
    path = unquote(parts.path, errors="surrogateescape")
    if not path.strip("/") or "\0" in path:
        raise bad_url(url, "it names no directory")
    return Path(path)


def open_hub(
    url: str | os.PathLike[str] | None = None,
    *,
    cwd: Path | None = None,
    create: bool = True,
    watch: bool | None = None,
    one_shot: bool = False,
    clock: Clock | None = None,
    random: Random = os.urandom,
    environ: Mapping[str, str] = os.environ,
    embedder: Embedder | str | None = None,
) -> Hub:
    """Open a store, and create it if it does not exist and `create` is true.

    Args:
        url: The store; if None, `store_url` finds it.
        cwd: The directory where the search for a pointer file starts.
        create: Create a missing store instead of raising NotFound.
        watch: Override the setting `watch`: notice file changes with inotify.
        one_shot: The process runs a single command. It then needs no watcher, and it may fork to
            scan files faster.
        clock: The source of time.
        random: The source of random bytes.
        environ: The environment variables.
        embedder: The embedder for semantic recall, or its name; overrides config.toml.
    """
    # imported here, so that reading a pointer or a setting does not load a database
    from ortet.backends.local.memory import ProcessCache
    from ortet.history.tree.tree import Trees
    from ortet.hub.hub import Hub, HubOptions
    from ortet.store.context import StoreContext, default_author, read_replay_request
    from ortet.swarm.lazy import LazySwarms
    from ortet.vault.keys import VAULT_KEY_VARIABLE, Keyring
    from ortet.workspaces.machine_homes import HostEngines

    _check_embedder(embedder)  # before anything is created
    clock, asked = clock or SystemClock(), store_url(url, cwd=cwd, environ=environ)
    backends = _open_backends(asked, clock=clock, random=random, create=create, environ=environ)
    root, objects, settings = backends.root, backends.objects, backends.settings
    _remove_abandoned_restores(root / "local")
    trees, criu = Trees(objects), criu_setting(environ)
    watch = not one_shot and (settings.watch if watch is None else watch)
    engine = _engine_factory(
        objects, trees, clock, root=root, watch=watch, one_shot=one_shot, criu=criu
    )
    store = StoreContext(
        url=backends.url,
        root=root,
        catalog=backends.catalog,
        bucket=backends.bucket,
        signal=backends.signal,
        cache=backends.cache or ProcessCache(clock),
        objects=objects,
        trees=trees,
        clock=clock,
        random=random,
        author=_text(environ.get("ORTET_AUTHOR")) or settings.author or default_author(),
        host=backends.host,
        environ=environ,
        keyring=Keyring(environ.get(VAULT_KEY_VARIABLE, ""), config_directory(environ)),
    )
    engines = HostEngines(
        find=engine,
        strongest=lambda: _strongest(engine),
        scope="host" if os.geteuid() == 0 else "workspace",
        hide=_secret_places(environ),
    )
    options = HubOptions(
        swarms=LazySwarms(open_hub),
        embedder=settings.embedder if embedder is None else embedder,
        index_factory=backends.index_factory,
        replay_request=read_replay_request(environ),
    )
    return Hub(store, engines, options)


def _remove_abandoned_restores(local: Path) -> None:
    """Remove what a killed `hub.restore(to=)` left outside of the store."""
    try:
        left = os.listdir(local / "restores")
    except OSError:
        return
    if left:  # the module is not loaded otherwise: every command line call is a new process
        from ortet.machines.restore.checkout import remove_abandoned

        remove_abandoned(local)


def _open_backends(
    url: str, *, clock: Clock, random: Random, create: bool, environ: Mapping[str, str]
) -> StoreBackends:
    if is_shared(url):
        cache = cache_directory(environ)
        return open_shared(url, cache=cache, clock=clock, random=random, create=create)
    if not is_remote(url):
        return open_embedded(store_path(url), clock=clock, random=random, create=create)
    token = environ.get("ORTET_TOKEN", "").strip()
    return open_remote(url, token=token, cache=cache_directory(environ), clock=clock, random=random)


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory for cached objects and machines of remote and shared stores."""
    named = environ.get("XDG_CACHE_HOME", "")
    if named.startswith("/"):
        return Path(named) / "ortet"
    if (place := home_directory(environ)) is None:
        raise Invalid("no_home", "this user has no home directory: set XDG_CACHE_HOME")
    return place / ".cache" / "ortet"


def _check_embedder(embedder: Embedder | str | None) -> None:
    if embedder is not None:
        from ortet.memory.embedders.lookup import check_embedder

        check_embedder(embedder)


def _engine_factory(
    objects: PackedObjectStore,
    trees: Trees,
    clock: Clock,
    *,
    root: Path,
    watch: bool,
    one_shot: bool,
    criu: str,
) -> Callable[[str], Engine]:
    @cache
    def engine(name: str) -> Engine:
        if name == "folder":
            from ortet.machines.folder import FolderEngine

            return FolderEngine(objects, trees, clock, watch=watch, may_fork=one_shot)
        if name == "overlay":
            from ortet.machines.overlay.engine import OverlayEngine

            return OverlayEngine(objects, trees, clock, root=root)
        if name == "criu":
            from ortet.machines.live.engine import CriuEngine

            return CriuEngine(objects, trees, clock, root=root, program=criu)
        raise Invalid("bad_engine", f"engine {name!r}: give auto, folder, overlay or criu")

    return engine


def _strongest(engine: Callable[[str], Engine]) -> str:
    return "overlay" if all(c.ok for c in engine("overlay").probe()) else "folder"


def _text(value: str | None) -> str:
    """Decode an environment variable, which may hold any bytes."""
    return os.fsencode(value or "").decode("utf-8", "replace")


def config_directory(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the directory of the user's settings; None without a home directory."""
    named = environ.get("XDG_CONFIG_HOME", "")
    if named.startswith("/"):
        return Path(named) / "ortet"
    place = home_directory(environ)
    return None if place is None else place / ".config" / "ortet"


def _secret_places(environ: Mapping[str, str]) -> tuple[Path, ...]:
    from ortet.workspaces.table import SECRET_PATHS

    top = home_directory(environ)
    places = () if top is None else SECRET_PATHS
    return tuple(path for place in places if top and os.path.lexists(path := top / place))
