"""How a process that will be killed says what it has done: lines in a pipe, which outlive it."""

from __future__ import annotations

import json
import os
from pathlib import Path


class Tell:
    """One line of JSON a call; shorter than a pipe's atomic size, so none is ever half."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __call__(self, *words: object) -> None:
        os.write(self._fd, json.dumps(words).encode() + b"\n")


def leave_mark(file: Path, *words: object) -> None:
    """What a deed does to the world: one line, whole or not at all."""
    fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(fd, " ".join(map(str, words)).encode() + b"\n")
    finally:
        os.close(fd)


def marks(file: Path) -> list[list[str]]:
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def write_whole(file: Path, text: str) -> None:
    """A file as it was, or as it is to be."""
    part = file.parent.with_name(f"{file.name}.part")
    part.write_text(text)
    part.rename(file)
