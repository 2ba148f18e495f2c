"""Finds the transcripts of coding agents and their subagents on disk."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from ortet.config.environment import read_variable
from ortet.errors import Invalid, NotFound
from ortet.integrations.transcripts.codex import payload_of
from ortet.integrations.transcripts.lines import Transcript

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z", re.IGNORECASE)
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9]")
_HEADER_LINES = 50
"""Number of first lines that are searched for id and directory."""


class TranscriptFile(msgspec.Struct, frozen=True):
    """A transcript file. `directory` is where its agent worked, or "" if unknown."""

    path: str
    size: int
    changed: int
    directory: str = ""


def default_directory(tool: str) -> Path:
    """Return the tool's own directory, which an environment variable may change."""
    home = Path(read_variable("HOME") or Path.home())
    if tool == "codex":
        return Path(read_variable("CODEX_HOME") or home / ".codex") / "sessions"
    return Path(read_variable("CLAUDE_CONFIG_DIR") or home / ".claude") / "projects"


def find_transcripts(tool: str, root: Path) -> list[TranscriptFile]:
    """Return all transcripts below a directory, newest first.

    Symbolic links are not followed, because they may form cycles.
    """
    if not root.is_dir():
        raise NotFound(
            "no_directory", f"there is no directory {root}: give the PATH of a transcript"
        )
    transcripts = []
    for path in _files(root):
        if not _is_transcript(tool, path):
            continue
        stat = path.stat()
        transcripts.append(
            TranscriptFile(str(path), stat.st_size, stat.st_mtime_ns, directory_of(tool, path))
        )
    return sorted(transcripts, key=lambda one: (-one.changed, one.path))


def _files(root: Path) -> Iterator[Path]:
    for directory, names, files in os.walk(root):
        names.sort()
        for name in sorted(files):
            path = Path(directory) / name
            if name.endswith(".jsonl") and path.is_file() and not path.is_symlink():
                yield path


def _is_transcript(tool: str, path: Path) -> bool:
    """Return True for a transcript that is not a subagent's; those belong to their parent."""
    if tool == "codex":
        return path.name.startswith("rollout-")
    return not path.name.startswith("agent-") and "subagents" not in path.parts


def filter_by_directory(
    tool: str, places: Iterable[TranscriptFile], directory: Path
) -> list[TranscriptFile]:
    """Return the transcripts whose agent worked in this directory."""
    real = os.path.realpath(directory)
    folder = _NOT_PLAIN.sub("-", real)
    return [
        one
        for one in places
        if (one.directory and os.path.realpath(one.directory) == real)
        or (tool != "codex" and not one.directory and Path(one.path).parent.name == folder)
    ]


def directory_of(tool: str, path: Path) -> str:
    """Return the working directory that one of the first lines names, or ""."""
    for data in _head(path):
        directory = (payload_of(data)[1] if tool == "codex" else data).get("cwd")
        if isinstance(directory, str) and directory:
            return directory
    return ""


def conversation_of(tool: str, path: Path) -> str:
    """Return the conversation id from the file name, else from one of the first lines."""
    if tool != "codex" and _UUID.match(path.stem):
        return path.stem
    for data in _head(path):
        if tool != "codex":
            id_ = data.get("sessionId")
        else:
            kind, payload = payload_of(data)
            id_ = payload.get("id") if kind == "session_meta" else None
        if isinstance(id_, str) and id_:
            return id_
    return path.stem or "transcript"


def agents_of(tool: str, path: Path) -> list[Path]:
    """Return the transcripts of a conversation's subagents."""
    if tool == "codex" or path.name.startswith("agent-"):
        return []
    inside = sorted((path.parent / path.stem / "subagents").rglob("agent-*.jsonl"))
    beside = [
        one
        for one in sorted(path.parent.glob("agent-*.jsonl"))
        if conversation_of(tool, one) == path.stem
    ]
    return [one for one in (*inside, *beside) if one.is_file() and not one.is_symlink()]


def _head(path: Path) -> Iterator[dict[str, Any]]:
    with Transcript(path) as transcript:
        for _, data in islice(transcript.lines(), _HEADER_LINES):
            if isinstance(data, dict):
                yield data


def transcripts_at(tool: str, path: Path) -> list[TranscriptFile]:
    """Return the transcripts at a path: the file, or all below a directory."""
    if path.is_dir():
        return find_transcripts(tool, path)
    if not path.exists():
        raise NotFound("no_file", f"there is no file {path}: give a transcript or a directory")
    if not path.is_file():
        raise Invalid("not_a_file", f"{path} is no regular file: give a transcript or a directory")
    stat = path.stat()
    return [TranscriptFile(str(path), stat.st_size, stat.st_mtime_ns, directory_of(tool, path))]
