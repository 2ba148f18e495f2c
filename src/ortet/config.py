"""The only reader of the environment and of configuration files; turns a URL into a hub.

Only this module picks a concrete backend or engine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec

from ortet.errors import Invalid, NotFound, Unsupported
from ortet.ids import Clock, Random, SystemClock

if TYPE_CHECKING:
    from ortet.graph.tree import Trees
    from ortet.machine.abc import Engine
    from ortet.session.hub import Hub
    from ortet.store.objects import LocalObjects

POINTER = ".ortet"
MIB = 1 << 20

# What an agent's commands have no business reading; relative to the user's home directory.
SECRET_PLACES = (
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".config/gcloud",
    ".config/gh",
    ".kube",
    ".docker/config.json",
    ".netrc",
    ".git-credentials",
    ".local/share/keyrings",
)


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`config.toml` in the store's directory. Sizes in MiB."""

    quota: int | None = None
    reserve: int = 64
    key_file: str | None = None
    author: str | None = None
    watch: bool = True


class Pointer(msgspec.Struct, frozen=True):
    """What a `.ortet` file says: which store, and which workspace this directory is."""

    directory: Path
    url: str
    workspace: str


def find_pointer(start: Path) -> Pointer | None:
    """The nearest `.ortet` at or above a directory."""
    for directory in (start, *start.parents):
        file = directory / POINTER
        if file.is_file():
            line = file.read_text("utf-8", "surrogateescape").removesuffix("\n")
            url, _, workspace = line.rpartition("#") if "#" in line else (line, "", "")
            if not url or "\n" in line:
                raise Invalid(
                    "bad_pointer",
                    f"{file} does not hold one line with a store: run `ortet init` again",
                )
            return Pointer(directory=directory, url=url, workspace=unquote(workspace))
    return None


def write_pointer(directory: Path, store: Path, workspace: str) -> None:
    """Make a directory know its store; its mtime is kept, since the pointer is not state."""
    before = directory.stat()
    text = f"{store}#{workspace}\n"
    (directory / POINTER).write_text(text, "utf-8", "surrogateescape")
    os.utime(directory, ns=(before.st_atime_ns, before.st_mtime_ns))
    for repository in (directory, *directory.parents):
        if (repository / ".git").is_dir():
            pattern = f"/{(directory / POINTER).relative_to(repository)}"
            _exclude(repository / ".git" / "info" / "exclude", pattern)
            break


def _exclude(file: Path, pattern: str) -> None:
    text = file.read_text("utf-8", "surrogateescape") if file.exists() else ""
    if pattern not in text.splitlines():
        file.parent.mkdir(exist_ok=True)
        end = "" if not text or text.endswith("\n") else "\n"
        file.write_text(f"{text}{end}{pattern}\n", "utf-8", "surrogateescape")


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
    pointer = find_pointer(cwd or Path.cwd())
    if pointer is not None:
        return pointer.url
    data = environ.get("XDG_DATA_HOME")
    return str((Path(data) if data else Path.home() / ".local" / "share") / "ortet")


def init_url(store: str | None, directory: Path, environ: Mapping[str, str] = os.environ) -> str:
    """The store `ortet init` uses: a broken pointer, which it replaces, does not stop it."""
    try:
        return store_url(store, cwd=directory, environ=environ)
    except Invalid:
        return store_url(None, cwd=directory.parent, environ=environ)


def debugging(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether to show tracebacks."""
    return environ.get("ORTET_DEBUG", "") not in ("", "0")


def wants_colour(environ: Mapping[str, str] = os.environ) -> bool:
    return not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def store_path(url: str) -> Path:
    """The directory an embedded store's URL names."""
    scheme = re.match(r"([a-z][a-z0-9+.-]+)://", url)
    if scheme is None:
        return Path(url).expanduser().absolute()
    if scheme[1] == "file":
        return Path(unquote(urlsplit(url).path))
    if scheme[1] in ("postgresql", "postgres", "http", "https"):
        raise Unsupported(
            "backend_missing",
            f"this release of ortet has embedded stores only, not {scheme[1]}://: give a directory",
        )
    raise Invalid("bad_url", f"{url!r} is not a store: give a directory or a file:// URL")


def open_hub(
    url: str | os.PathLike[str] | None = None,
    *,
    cwd: Path | None = None,
    create: bool = True,
    watch: bool | None = None,
    clock: Clock | None = None,
    random: Random = os.urandom,
    environ: Mapping[str, str] = os.environ,
) -> Hub:
    """Open the store, making it when it is not there and `create` is true.

    `watch` overrides the setting: a short-lived process looks once and needs no watcher.
    """
    # here, so that asking this module for a pointer or a setting does not load a database
    from ortet.backend.files import FileBucket
    from ortet.backend.signals import HostSignal
    from ortet.backend.sqlite import SqliteCatalog
    from ortet.codec import Hasher
    from ortet.graph.tree import Trees
    from ortet.session.hub import Hub, Parts
    from ortet.store.objects import LocalObjects
    from ortet.store.root import check_place

    root = store_path(store_url(url, cwd=cwd, environ=environ))
    if not create and not (root / "FORMAT").exists():
        raise NotFound("no_store", f"there is no store at {root}: run `ortet init` first")
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    settings = _settings(root)
    clock = clock or SystemClock()
    check_place(root)
    # The catalog comes before FORMAT: where FORMAT is, a missing catalog is lost, not new.
    catalog = SqliteCatalog(root / "catalog.db", clock, create=not (root / "FORMAT").exists())
    bucket = FileBucket(root / "bucket")
    objects = LocalObjects(
        root,
        bucket,
        hasher=Hasher(_key(settings, root)),
        clock=clock,
        random=random,
        quota=settings.quota * MIB if settings.quota is not None else None,
        reserve=settings.reserve * MIB,
    )
    trees = Trees(objects)
    watch = settings.watch if watch is None else watch
    engine = _engines(objects, trees, clock, root=root, watch=watch)
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
            author=environ.get("ORTET_AUTHOR") or settings.author or _user(),
            host=_host_id(),
            scope="host" if os.geteuid() == 0 else "workspace",
            hide=_secret_places(),
        )
    )


def _engines(
    objects: LocalObjects, trees: Trees, clock: Clock, *, root: Path, watch: bool
) -> Callable[[str], Engine]:
    @cache
    def engine(name: str) -> Engine:
        if name == "folder":
            from ortet.machine.folder import FolderEngine

            return FolderEngine(objects, trees, clock, watch=watch)
        if name == "overlay":
            from ortet.machine.overlay import OverlayEngine

            return OverlayEngine(objects, trees, clock, root=root)
        if name == "criu":
            raise Unsupported(
                "engine_missing",
                "this release of ortet cannot carry processes yet: use engine='overlay'",
            )
        raise Invalid("bad_engine", f"engine {name!r}: give auto, folder, overlay or criu")

    return engine


def _strongest(engine: Callable[[str], Engine]) -> str:
    return "overlay" if all(c.ok for c in engine("overlay").probe()) else "folder"


def _settings(root: Path) -> Settings:
    file = root / "config.toml"
    if not file.exists():
        return Settings()
    import tomllib

    try:
        values: dict[str, Any] = tomllib.loads(file.read_text())
        return msgspec.convert(values, Settings)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise Invalid("bad_config", f"{file} cannot be used ({error}): correct it") from error


def _key(settings: Settings, root: Path) -> bytes | None:
    if settings.key_file is None:
        return None
    file = root / settings.key_file
    try:
        key = bytes.fromhex(file.read_text().strip())
    except (OSError, ValueError) as error:
        raise Invalid("bad_key", f"key file {file} cannot be read ({error})") from error
    if len(key) != 32:
        raise Invalid("bad_key", f"key file {file} must hold 64 hexadecimal digits")
    return key


def _user() -> str:
    import pwd

    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a uid without a name, as containers have
        name = str(os.getuid())
    return f"{name}@{os.uname().nodename}"


def _host_id() -> str:
    from ortet.codec import checksum

    try:
        machine = Path("/etc/machine-id").read_text()
    except OSError:
        machine = ""
    return checksum(f"{machine}\n{os.uname().nodename}".encode()).hex()


def _secret_places() -> tuple[Path, ...]:
    try:
        home = Path.home()
    except RuntimeError:
        return ()
    return tuple(path for place in SECRET_PLACES if (path := home / place).exists())
