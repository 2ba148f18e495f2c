"""The `.ortet` pointer file: one line that names the store and the workspace of a directory."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote, unquote

import msgspec

from ortet.errors import Invalid, Refused

POINTER = ".ortet"


class Pointer(msgspec.Struct, frozen=True):
    """The parsed contents of a `.ortet` file."""

    directory: Path
    url: str
    workspace: str


def find_pointer(start: Path) -> Pointer | None:
    """Return the nearest `.ortet` pointer at or above a directory."""
    for directory in (start, *start.parents):
        file = directory / POINTER
        if os.path.isfile(file):
            try:
                line = os.fsdecode(file.read_bytes()).removesuffix("\n")
            except OSError as error:
                raise _bad(file, f"cannot be read ({error.strerror})") from error
            url, _, workspace = line.rpartition("#") if "#" in line else (line, "", "")
            if not url or "\n" in line or "\0" in line:
                raise _bad(file, "does not hold one line with a store")
            return Pointer(directory=directory, url=url, workspace=unquote(workspace))
    return None


def _bad(file: Path, why: str) -> Invalid:
    return Invalid("bad_pointer", f"{file} {why}: run `ortet init` again")


def write_pointer(directory: Path, store: Path | str, workspace: str) -> None:
    """Write the pointer file of a directory.

    `store` is a directory or a URL. The mtime of the directory is kept, since the pointer is not
    state.
    """
    file = directory / POINTER
    raw = os.fsencode(store)
    place = b"file://" + quote(raw).encode() if b"\n" in raw else raw
    try:
        before = directory.stat()
        file.write_bytes(place + b"#" + quote(workspace).encode() + b"\n")
        os.utime(directory, ns=(before.st_atime_ns, before.st_mtime_ns))
    except OSError as error:
        raise Refused(
            "not_permitted",
            f"cannot write {error.filename or file} ({error.strerror}): make it writable, or open "
            "the directory from Python, which needs no pointer",
        ) from error
    # the repository may belong to another user; git then shows the file as untracked
    with suppress(OSError):
        _hide_from_git(file)


def _hide_from_git(file: Path) -> None:
    """Add the file to the exclude list of the enclosing git repository, if there is one."""
    for directory in file.parents:
        git = _git_directory(directory / ".git")
        if git is not None:
            path = re.sub(r"([*?\[\\])", r"\\\1", str(file.relative_to(directory)))
            _exclude(git / "info" / "exclude", f"/{path}")
            return


def _git_directory(git: Path) -> Path | None:
    """Return the git directory that `.git` stands for, or None.

    In a worktree, `.git` is a file that contains the path.
    """
    if git.is_dir() or not git.is_file():
        return git if git.is_dir() else None
    text = git.read_text("utf-8", "surrogateescape").strip()
    place = git.parent / text.removeprefix("gitdir:").strip()
    common = place / "commondir"
    if common.is_file():
        place /= common.read_text("utf-8", "surrogateescape").strip()
    return place if place.is_dir() else None


def _exclude(file: Path, pattern: str) -> None:
    text = file.read_text("utf-8", "surrogateescape") if file.exists() else ""
    if pattern not in text.splitlines():
        file.parent.mkdir(exist_ok=True)
        end = "" if not text or text.endswith("\n") else "\n"
        file.write_text(f"{text}{end}{pattern}\n", "utf-8", "surrogateescape")
