"""Search for known secrets in what is about to be stored."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ortet.errors import Refused
from ortet.machine.memory import list_images
from ortet.machine.pagemaps import read_laid

SHORTEST = 8
"""Bytes: what is shorter is found everywhere, and proves nothing."""

_WINDOW = 1 << 20
_PROCESS = re.compile(r"(?:pagemap|core|mm)-(\d+)\.img")
_FEW = 5


class Known:
    """Secrets by name. What is found is told by its name and its place, never by its value."""

    def __init__(self, values: Mapping[str, str]) -> None:
        coded = ((name, os.fsencode(value)) for name, value in values.items())
        self._values = [(name, value) for name, value in coded if len(value) >= SHORTEST]
        self._longest = max((len(value) for _, value in self._values), default=0)

    def __bool__(self) -> bool:
        return bool(self._values)

    def __repr__(self) -> str:
        return f"<Known {len(self._values)}>"

    def file(self, fd: int, size: int, path: bytes) -> None:
        """Refused("secret_found") if the first `size` bytes of an open file hold one."""
        for data in _windows(fd, size, self._longest - 1):
            name = self._in(data)
            if name:
                raise found(name, f"file {os.fsdecode(path)}")

    def text(self, text: str, where: str) -> None:
        name = self._in(os.fsencode(text))
        if name:
            raise found(name, where)

    def images(self, directory: Path, page: int, tell: Callable[[int], str]) -> None:
        """The same of what CRIU wrote about processes; `tell` says which one has a pid."""
        seen: dict[str, list[str]] = {}
        for image, size in sorted(list_images(directory).items()):
            if not size:
                continue
            with (
                (directory / image).open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
            ):
                name = self._in(data)
            if name:
                seen.setdefault(name, []).append(image)
        for name, images in seen.items():
            places = _owners(directory, images, page, tell)
            raise found(name, ", ".join(places[:_FEW]))

    def _in(self, data: bytes | mmap.mmap) -> str:
        return next((name for name, value in self._values if data.find(value) >= 0), "")


def found(name: str, where: str) -> Refused:
    return Refused(
        "secret_found",
        f"secret {name!r} is in {where}, and a commit would keep it: take it out of there (a file "
        "may be named in .ortetignore, a process ended), or commit with allow_secrets",
        secret=name,
        where=where,
    )


def _owners(directory: Path, images: list[str], page: int, tell: Callable[[int], str]) -> list[str]:
    """Whose images they are: those of a process are called KIND-PID.img, its pages as its pagemap
    says."""
    sizes = list_images(directory)
    laid = read_laid(lambda name: (directory / name).read_bytes(), sizes, page)
    named = (laid[image].key if image in laid else image for image in images)
    owners = (_PROCESS.fullmatch(name) or name for name in named)
    told = (
        f"what processes share ({one})"
        if isinstance(one, str)
        else f"the memory of {tell(int(one[1]))}"
        for one in owners
    )
    return sorted(set(told))


def _windows(fd: int, size: int, overlap: int) -> Iterator[bytes]:
    """A file in pieces that overlap, so that nothing lies across an edge."""
    at = 0
    while at < size:
        data = os.pread(fd, min(_WINDOW + overlap, size - at), at)
        if not data:
            return
        yield data
        at += _WINDOW if len(data) > _WINDOW else len(data)
