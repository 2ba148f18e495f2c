"""Commands clone, pull, push: copy commits between this store and another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import click

from ortet.cli.call import CliCall, verb
from ortet.cli.terminal import output
from ortet.errors import Conflict, Invalid, NotFound
from ortet.hub.transfer import TransferReport

if TYPE_CHECKING:
    from ortet.hub.hub import Hub


@verb()
@click.argument("url")
@click.argument("directory", metavar="[DIR]", required=False)
def clone(call: CliCall, url: str, directory: str | None) -> None:
    """Copy all branches and tags of another store into a new store in DIR.

    Without DIR, the new store is here, in a directory named after the other.

    URL is the directory of a store, http://HOST:PORT of a server, postgresql://… of a shared store,
    or the file of a bundle. Run the same command again to continue after an interruption: no object
    is copied twice.

    \b
    Example:
      ortet clone http://build-host:7878 ./copy
    """
    place = call.cwd / (directory or _directory_name(call.cwd, url))
    taken = place.exists() and (not place.is_dir() or any(place.iterdir()))
    if taken and not (place / "FORMAT").exists():
        raise Conflict("exists", f"{place} is there and is no store: choose another directory")
    other = _source(call, url)
    hub = call.open_hub(str(place), create=True)
    with call.output.progress("clone") as progress:
        report = hub.pull(other, progress=progress)
    lines = [*_lines(report), *([] if directory else [f"the store is {place}"])]
    call.output.emit({"store": str(place), **output.fields(report)}, lines)


@verb()
@click.argument("url")
@click.argument("refs", metavar="[REF]...", nargs=-1)
def pull(call: CliCall, url: str, refs: tuple[str, ...]) -> None:
    """Copy branches and tags of another store to this one.

    Copies the given names, by default all. Only missing objects are copied, and they are verified.
    A branch moves if its new head follows its present head. A branch that has diverged here, or
    that you work on, is copied under a name with a number.

    \b
    Example:
      ortet pull http://build-host:7878
      ortet pull ../other-store fix-42
      ortet pull work.bundle
    """
    other = _source(call, url)
    hub = call.open_hub(create=True)
    with call.output.progress("pull") as progress:
        report = hub.pull(other, refs, progress=progress)
    call.output.emit(report, _lines(report))


@verb()
@click.argument("url")
@click.argument("refs", metavar="[REF]...", nargs=-1)
def push(call: CliCall, url: str, refs: tuple[str, ...]) -> None:
    """Copy branches and tags of this store to another.

    Copies the given names, by default all. Only missing objects are copied, and they are verified.
    If a branch has diverged there, or somebody works on it there, the push is refused and nothing
    is sent. A name that ends with .bundle is a file, which is written as a whole.

    \b
    Example:
      ortet push http://build-host:7878 fix-42
      ortet push work.bundle
    """
    other = _bundle_path(call, url) or _target(call, url)
    with call.output.progress("push") as progress:
        report = call.hub.push(other, refs, progress=progress)
    call.output.emit(report, _lines(report))


def _directory_name(here: Path, url: str) -> str:
    """Return the last name in a URL: of a directory, file or database, otherwise the host."""
    if "://" in url:
        parts = urlsplit(url)
        name = unquote(parts.path).strip("/").rpartition("/")[2] or parts.hostname or ""
    else:
        path = (here / url).resolve()
        name = path.parent.name if path.name == ".ortet" else path.name.removesuffix(".bundle")
    if not name.strip("."):
        raise Invalid("no_directory", f"name the directory to make: `ortet clone {url} DIR`")
    return name


def _source(call: CliCall, url: str) -> Hub | Path:
    """Open the source of the commits. A bundle file is checked before a store is created for it."""
    bundle = _bundle_path(call, url)
    if bundle is None:
        return call.open_hub(url, create=False)
    from ortet.hub.transfer import check_bundle

    check_bundle(bundle)
    return bundle


def _target(call: CliCall, url: str) -> Hub:
    try:
        return call.open_hub(url, create=False)
    except NotFound as error:
        if error.kind != "no_store" or "://" in url:
            raise
        raise NotFound(
            "no_store",
            f"there is no store at {call.cwd / url}: check the path; `ortet clone STORE {url}` "
            "makes one with all of this one, and a name that ends with .bundle is one file",
        ) from error


def _bundle_path(call: CliCall, url: str) -> Path | None:
    """Return the path of a bundle file if `url` names an existing or a new one. Otherwise None."""
    if "://" in url:
        return None
    path = call.cwd / url
    is_bundle = path.is_file() or (path.suffix == ".bundle" and not path.is_dir())
    return path if is_bundle else None


def _lines(report: TransferReport) -> Iterator[str]:
    for name in report.moved:
        oid = report.branches.get(name) or report.tags[name]
        yield f"{output.safe(name)} is {output.short_id(oid)}"
    for name in report.kept:
        yield f"tag {output.safe(name)} is another there: left as it is"
    what = f"{output.plural(report.objects, 'object')}, {output.format_size(report.bytes)}"
    yield f"{what} travelled" if report.objects else "nothing was missing"
