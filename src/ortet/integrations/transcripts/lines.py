"""Reads the lines of a transcript in bounded memory.

A line that cannot be parsed is available as raw bytes.
"""

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
"""Maximum size of a line that is parsed; a longer line is stored in pieces of this size."""

_SURROGATE = re.compile("[\ud800-\udfff]")


class TranscriptLine(msgspec.Struct, frozen=True):
    """The position of a line, and its `key`.

    The key stays the same while the file grows. `piece` is True for a part of a line that is too
    long to parse.
    """

    start: int
    size: int
    key: str
    piece: bool = False


class Transcript:
    """An open transcript, which may still grow: an incomplete last line is left out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = _open(path)
        self.incomplete_bytes = 0  # size of an incomplete last line, after all lines were read

    def __enter__(self) -> Transcript:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def lines(self) -> Iterator[tuple[TranscriptLine, Any]]:
        """Yield all lines that are not empty, with their parsed data; None if it is not JSON."""
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
            self._file.seek(start)  # The consumer may have read another line.

    def raw(self, line: TranscriptLine) -> bytes:
        self._file.seek(line.start)
        return self._file.read(line.size)

    def data(self, line: TranscriptLine) -> Any:
        """Return the parsed data of a line; None if it is not JSON or too long."""
        return None if line.piece else decode_json(self.raw(line))


def decode_json(raw: bytes) -> Any:
    """Parse JSON, also with lone surrogates; None for anything else."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        decoded = json.loads(raw.decode())
        return _replace_surrogates(decoded)
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
    """Return a line as record data: text, or base64 if it is not text."""
    try:
        return {"raw": raw.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


def _open(path: Path) -> BinaryIO:
    try:  # O_NONBLOCK: opening a pipe must not wait for a writer.
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
