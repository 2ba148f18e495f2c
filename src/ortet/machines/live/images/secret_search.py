"""Searches the images that CRIU wrote of processes for secrets, before they are stored."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from ortet.machines.live.images.pagemap import read_page_layouts
from ortet.machines.live.images.save import list_images
from ortet.machines.secrets.scanner import secret_found_error

_PROCESS = re.compile(r"(?:pagemap|core|mm)-(\d+)\.img")
_MAX_REPORTED_OWNERS = 5


class PlainScanner(Protocol):
    """The part of a secret scanner that searches files for plain values."""

    def plain_name(self, fd: int, size: int) -> str: ...


def check_images(
    scanner: PlainScanner, directory: Path, page_size: int, describe_process: Callable[[int], str]
) -> None:
    """Raise Refused("secret_found") if the images of processes hold a secret.

    Memory may be gigabytes, so it is searched for plain values only.

    Args:
        directory: The directory of the images.
        page_size: The size of a memory page.
        describe_process: Returns the description of the process with this pid.
    """
    found: dict[str, list[str]] = {}
    for image, size in sorted(list_images(directory).items()):
        with (directory / image).open("rb") as file:
            name = scanner.plain_name(file.fileno(), size)
        if name:
            found.setdefault(name, []).append(image)
    for name, images in found.items():
        places = _owners(directory, images, page_size, describe_process)
        raise secret_found_error(name, ", ".join(places[:_MAX_REPORTED_OWNERS]))


def _owners(
    directory: Path,
    images: Sequence[str],
    page_size: int,
    describe_process: Callable[[int], str],
) -> list[str]:
    """Return the processes to which these images belong.

    An image of a process is named KIND-PID.img. A pagemap names the pages of its process.
    """
    sizes = list_images(directory)
    layouts = read_page_layouts(lambda name: (directory / name).read_bytes(), sizes, page_size)
    named = (layouts[image].key if image in layouts else image for image in images)
    owners = (_PROCESS.fullmatch(name) or name for name in named)
    described = (
        f"what processes share ({one})"
        if isinstance(one, str)
        else f"the memory of {describe_process(int(one[1]))}"
        for one in owners
    )
    return sorted(set(described))
