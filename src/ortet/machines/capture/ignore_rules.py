"""Rules for what is not state: `.ortetignore` files, size rules, and Ortet's own names.

`.ortetignore` has the syntax of .gitignore: comments, `!`, `dir/`, anchors, `**`. Any directory may
have one; the deepest file with a match decides. A line `size > 500MB [pattern]` leaves out larger
files, which are reported at every commit. KB, MB, GB, TB are powers of 1000; KiB, MiB and so on are
powers of 1024.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from ortet._util.codec import checksum
from ortet.errors import Invalid
from ortet.machines.base import Loss
from ortet.machines.capture.entry import open_noatime
from ortet.machines.capture.frames import DirectoryChanges, DirectoryScan
from ortet.machines.capture.stat_index import DirectoryNode, StatIndex
from ortet.machines.dirfd import STAGE_PREFIX, DirFdCache, join_path

IGNORE_FILE = b".ortetignore"
POINTER_FILE = b".ortet"

_SIZE_LINE = re.compile(rb"size\s*>(.*)", re.DOTALL)
_SIZE = re.compile(
    rb"\s*(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?)b|b)(?:\s+(.+))?", re.IGNORECASE | re.DOTALL
)
_WILD = {b"*": b"[^/]*", b"?": b"[^/]"}
_POWER = {b"": 0, b"k": 1, b"m": 2, b"g": 3, b"t": 4}


class IgnorePattern(msgspec.Struct, frozen=True):
    """One line of an ignore file. With `limit` it applies only to larger files."""

    regex: re.Pattern[bytes]
    keep: bool = False
    only_dirs: bool = False
    limit: int | None = None


class IgnoreRules:
    """The rules of one workspace, by the directory of the ignore file (b"" is the root)."""

    def __init__(self) -> None:
        self._patterns: dict[bytes, list[IgnorePattern]] = {}
        self._digests: dict[bytes, bytes] = {}

    def set_rules(self, directory: bytes, text: bytes | None) -> None:
        """Set the text of the directory's `.ortetignore`; None means that there is no file."""
        patterns = parse_ignore_file(text, os.fsdecode(directory)) if text else []
        if patterns:
            self._patterns[directory] = patterns
            self._digests[directory] = checksum(text or b"")
        else:
            self._patterns.pop(directory, None)
            self._digests.pop(directory, None)

    @property
    def is_empty(self) -> bool:
        """True if no ignore file has a rule, so that only Ortet's own names are left out."""
        return not self._patterns

    def clear(self) -> None:
        self._patterns.clear()
        self._digests.clear()

    def remove_below(self, directory: bytes) -> None:
        """Remove the rules of a deleted directory and of everything below it."""
        below = directory + b"/"
        for path in [
            path for path in self._patterns if path == directory or path.startswith(below)
        ]:
            self.set_rules(path, None)

    def has_rules(self, directory: bytes) -> bool:
        return directory in self._patterns

    def digest(self, directory: bytes) -> bytes:
        """Return a value that changes when the rules for this directory may have changed.

        Returns b"" if the workspace has no rules.
        """
        if not self._digests:
            return b""
        return b"".join(self._digests.get(at, b"") for at in _ancestors(directory))

    def is_ignored(self, path: bytes, is_dir: bool) -> bool:
        """Return True if the path is not state.

        The caller must check the directories above the path first.
        """
        name = path.rpartition(b"/")[2]
        if name == IGNORE_FILE:
            return False  # the rules themselves are part of the state
        if name.startswith(STAGE_PREFIX) or (path == POINTER_FILE and not is_dir):
            return True
        for pattern in self._matching(path):
            if pattern.limit is None and (is_dir or not pattern.only_dirs):
                return not pattern.keep
        return False

    def size_limit(self, path: bytes) -> int | None:
        """Return the size above which this file is left out, or None."""
        for pattern in self._matching(path):
            if pattern.limit is not None:
                return pattern.limit
        return None

    def _matching(self, path: bytes) -> Iterator[IgnorePattern]:
        """Yield the patterns that match; the first one decides."""
        if not self._patterns:
            return
        for directory in _ancestors(path.rpartition(b"/")[0]):
            if directory in self._patterns:
                relative = path[len(directory) + 1 :] if directory else path
                for pattern in reversed(self._patterns[directory]):
                    if pattern.regex.fullmatch(relative):
                        yield pattern


def parse_ignore_file(text: bytes, directory: str = "") -> list[IgnorePattern]:
    """Return the patterns of an ignore file.

    Raises Invalid for a size line without a valid size.
    """
    patterns = []
    for number, line in enumerate(text.splitlines(), 1):
        trimmed = _trim(line)
        if not trimmed or trimmed.startswith(b"#"):
            continue
        if size_line := _SIZE_LINE.fullmatch(trimmed):
            patterns.append(
                _size_rule(size_line[1], f"{directory or '.'}/.ortetignore line {number}")
            )
        elif pattern := _pattern(trimmed):
            patterns.append(pattern)
    return patterns


def _ancestors(directory: bytes) -> Iterator[bytes]:
    while directory:
        yield directory
        directory = directory.rpartition(b"/")[0]
    yield b""


def _trim(line: bytes) -> bytes:
    """Remove trailing blanks, unless the last one is escaped."""
    trimmed = line.rstrip(b" \t")
    if trimmed.endswith(b"\\") and len(trimmed) < len(line):
        trimmed += line[len(trimmed) : len(trimmed) + 1]
    return trimmed


def _size_rule(expression: bytes, place: str) -> IgnorePattern:
    match = _SIZE.fullmatch(expression)
    if match is None:
        shown = expression.decode(errors="backslashreplace").strip()
        message = f"{place}: {shown!r} is not a size: write for example `size > 500MB *.bin`"
        raise Invalid("bad_rule", message)
    number, unit, binary, glob = match.groups()
    limit = float(number) * (1024 if binary else 1000) ** _POWER[(unit or b"").lower()]
    about = _pattern(glob) if glob else None
    return IgnorePattern(about.regex if about else re.compile(rb".*", re.DOTALL), limit=int(limit))


def _pattern(line: bytes) -> IgnorePattern | None:
    keep = line.startswith(b"!")
    glob = line[1:] if keep else line
    only_dirs = glob.endswith(b"/")
    glob = glob.rstrip(b"/") if only_dirs else glob
    if not glob:
        return None
    anchored = b"/" in glob
    start = b"" if anchored else b"(?:.*/)?"
    return IgnorePattern(
        re.compile(start + _translate(glob.lstrip(b"/")), re.DOTALL), keep, only_dirs
    )


def _translate(glob: bytes) -> bytes:
    """Translate a glob of slash-separated parts into a regular expression over raw bytes."""
    out, position = b"", 0
    while position < len(glob):
        if glob.startswith(b"**/", position) and (
            position == 0 or glob[position - 1 : position] == b"/"
        ):
            out, position = out + b"(?:.*/)?", position + 3
        elif glob[position:] == b"**" and (position == 0 or glob[position - 1 : position] == b"/"):
            out, position = out + b".+", position + 2
        elif glob[position : position + 1] == b"[":
            part, position = _bracket(glob, position)
            out += part
        elif glob[position : position + 1] == b"\\" and position + 1 < len(glob):
            out, position = out + re.escape(glob[position + 1 : position + 2]), position + 2
        else:
            char = glob[position : position + 1]
            out, position = out + _WILD.get(char, re.escape(char)), position + 1
    return out


def _bracket(glob: bytes, start: int) -> tuple[bytes, int]:
    """Translate [a-z], [!a-z], []] and so on. An unclosed bracket matches itself."""
    end = glob.find(b"]", start + 3 if glob[start + 1 : start + 2] in (b"!", b"^") else start + 2)
    if end < 0:
        return re.escape(b"["), start + 1
    inside = glob[start + 1 : end]
    negated = inside[:1] in (b"!", b"^")
    inside = (inside[1:] if negated else inside).replace(b"\\", b"\\\\").replace(b"[", b"\\[")
    inside = inside.replace(b"]", b"\\]").replace(b"^", b"\\^").replace(b"&", b"\\&")
    part = b"(?!/)[" + (b"^" if negated else b"") + inside + b"]"
    try:
        re.compile(part)
    except re.error:
        return b"(?!)", end + 1  # a range such as [z-a] matches nothing, as in git
    return part, end + 1


# Applies the ignore rules during a scan, and records the losses of each directory.

_FILE = os.fsdecode(IGNORE_FILE)
_OURS = ".ortet"
_MAX_IGNORE_FILE_BYTES = 1 << 20


class IgnoreFilter:
    """Applies the rules of a workspace to the directories of a scan."""

    def __init__(self, index: StatIndex, rules: IgnoreRules) -> None:
        self._index = index
        self._rules = rules

    def apply(self, frame: DirectoryScan, changes: DirectoryChanges) -> None:
        """Read the ignore file of a directory.

        If the rules changed, scan everything below it again.
        """
        node, path = frame.node, frame.path
        if _FILE in node.stats or any(name == _FILE for name, _ in changes.changed):
            self._rules.set_rules(path, _read(frame.fd))
        elif self._rules.has_rules(path):
            self._rules.set_rules(path, None)
        digest = self._rules.digest(path)
        if digest != node.rules_digest:
            node.rules_digest = digest
            frame.plan = None
            for name, was in node.stats.items():
                if self.is_left_out(frame, name, was[0], size=was[6]):
                    changes.removed.add(name)

    def is_left_out(self, frame: DirectoryScan, name: str, mode: int, *, size: int) -> bool:
        """Return True if a name is not state.

        A file that is too large is also recorded as a loss.
        """
        rules = self._rules
        if rules.is_empty and not name.startswith(_OURS):
            return False
        path = join_path(frame.path, os.fsencode(name))
        if rules.is_ignored(path, stat.S_ISDIR(mode)):
            return True
        limit = rules.size_limit(path) if stat.S_ISREG(mode) else None
        if limit is None or size <= limit:
            return False
        why = f"its {size} bytes are more than the {limit} that {_FILE} allows"
        self.record_loss(frame, name, Loss(os.fsdecode(path), "size", why))
        return True

    def record_loss(self, frame: DirectoryScan, name: str, *losses: Loss) -> None:
        self._index.losses.setdefault(frame.path, {})[name] = list(losses)

    def reload(
        self, fd: int, rule_dirs: list[bytes], governed: list[tuple[bytes, DirectoryNode]]
    ) -> list[bytes]:
        """Read all ignore files again and return the directories whose rules changed."""
        self._rules.clear()
        with DirFdCache(fd) as dirs:
            for path in rule_dirs:
                with suppress(OSError):
                    self._rules.set_rules(path, _read(dirs.fd(path)))
        return [path for path, node in governed if self._rules.digest(path) != node.rules_digest]

    def forget_directory(self, path: bytes) -> None:
        """Remove the rules of a deleted directory."""
        self._rules.remove_below(path)


def _read(fd: int) -> bytes | None:
    """Return the text of the ignore file in a directory, or None if it is no regular file."""
    try:
        own = open_noatime(IGNORE_FILE, fd)
    except OSError:
        return None
    try:
        return os.read(own, _MAX_IGNORE_FILE_BYTES) if stat.S_ISREG(os.fstat(own).st_mode) else None
    finally:
        os.close(own)
