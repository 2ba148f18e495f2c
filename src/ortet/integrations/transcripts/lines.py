"""The lines of a transcript, read in bounded memory: what cannot be understood is had as it is."""

from __future__ import annotations

import base64
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO

import msgspec

from ortet.errors import Invalid, NotFound, Refused, Unavailable

MAX_LINE_BYTES = 32 << 20
"""Bytes of a line that is looked into; a longer one is kept in pieces of so many."""

_SURROGATE = re.compile("[\ud800-\udfff]")


class TranscriptLine(msgspec.Struct, frozen=True):
    """Where a line lies, and its `key`: the same whenever the same file is read, however much it
    has grown. `piece`: it is too long to be looked into, and this is a part of it."""

    start: int
    size: int
    key: str
    piece: bool = False


class Transcript:
    """An open transcript. It may be growing: a last line that is not whole is left for later."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = _open(path)
        self.incomplete_bytes = (
            0  # bytes of a last line that is not whole, once all lines were gone over
        )

    def __enter__(self) -> Transcript:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def lines(self) -> Iterator[tuple[TranscriptLine, Any]]:
        """All lines that are not empty, with what each says: None when that is not JSON."""
        seen: Counter[str] = Counter()
        start, self.incomplete_bytes, inside = 0, 0, False
        self._file.seek(0)
        while raw := self._file.readline(MAX_LINE_BYTES):
            ends = raw.endswith(b"\n")
            piece = inside or (len(raw) == MAX_LINE_BYTES and not ends)
            data = None if piece else decode_json(raw)
            if not ends and data is None and len(raw) < MAX_LINE_BYTES:
                self.incomplete_bytes = len(raw)
                return
            inside = piece and not ends
            if raw.strip():
                mark = blake2b(raw.rstrip(b"\r\n"), digest_size=8).hexdigest()
                seen[mark] += 1
                key = f"#{mark}" if seen[mark] == 1 else f"#{mark}.{seen[mark]}"
                yield TranscriptLine(start, len(raw), key, piece), data
            start += len(raw)
            self._file.seek(start)  # whoever was given the line may have read another

    def raw(self, line: TranscriptLine) -> bytes:
        self._file.seek(line.start)
        return self._file.read(line.size)

    def data(self, line: TranscriptLine) -> Any:
        """What a line says; None when that is not JSON, or too long to look."""
        return None if line.piece else decode_json(self.raw(line))


def decode_json(raw: bytes) -> Any:
    """JSON, also with halves of characters that were cut in two; None for anything else."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        found = json.loads(raw.decode())
        return _replace_surrogates(found)
    except (ValueError, RecursionError):
        return None


def _replace_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_replace_surrogates(one) for one in value]
    if isinstance(value, dict):
        return {_replace_surrogates(key): _replace_surrogates(one) for key, one in value.items()}
    return value


def encode_raw(raw: bytes) -> dict[str, str]:
    """A line as a record can hold it: as text, or where it is none, in base64."""
    try:
        return {"raw": raw.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


def _open(path: Path) -> BinaryIO:
    try:  # a pipe would keep us waiting for somebody who writes
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise NotFound("no_file", f"there is no file {path}: give one that exists") from None
    except PermissionError:
        raise Refused(
            "no_permission", f"{path} cannot be read: check who owns it, or work as its owner"
        ) from None
    except (OSError, ValueError) as error:
        raise Unavailable("unreadable", f"{path} cannot be read ({error}): check it") from error
    if not S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise Invalid("not_a_file", f"{path} is no regular file: give a transcript or a directory")
    return os.fdopen(number, "rb")
