"""The differences of one file: hunks of lines for both sides, with syntax highlighting."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from ortet.cli.terminal import output
from ortet.history.diff import line_diff
from ortet.history.diff.tree_diff import TreeChange
from ortet.history.records import TreeEntry
from ortet.objects.base import ObjectStore
from ortet.objects.blobs import read_file

if TYPE_CHECKING:
    from markupsafe import Markup


# Syntax highlighting: splits source text into lines of (CSS class, text) pairs.

StyledText = tuple[str, str]

_MAX_TEXT_CHARACTERS = 256 << 10
_MAX_LINE_CHARACTERS = 2000
"""Largest text and longest line that are highlighted.

Longer ones are rarely code and could keep a lexer busy for a long time.
"""


def highlight_lines(path: str, text: str) -> list[list[StyledText]]:
    """Return the lines of a text, highlighted by the type of the file name."""
    lines = text.split("\n")
    lexer = _lexer(path) if len(text) <= _MAX_TEXT_CHARACTERS else None
    if lexer is None or any(len(line) > _MAX_LINE_CHARACTERS for line in lines):
        return [[("", line)] for line in lines]
    highlighted: list[list[StyledText]] = [[]]
    for kind, value in lexer.get_tokens(text):
        class_ = _class(kind)
        first, *rest = value.split("\n")
        if first:
            highlighted[-1].append((class_, first))
        for line in rest:
            highlighted.append([(class_, line)] if line else [])
    del highlighted[len(lines) :]  # lexers add a final line break
    highlighted += [[] for _ in range(len(lines) - len(highlighted))]
    return highlighted


def _lexer(path: str) -> Any:
    from pygments.lexers import get_lexer_for_filename  # type: ignore[import-untyped]
    from pygments.util import ClassNotFound  # type: ignore[import-untyped]

    try:
        return get_lexer_for_filename(path.rpartition("/")[2] or "x", stripnl=False, ensurenl=False)
    except (ClassNotFound, ValueError):
        return None


def _class(kind: Any) -> str:
    from pygments.token import Token  # type: ignore[import-untyped]

    for class_, kinds in (
        ("k", (Token.Keyword, Token.Operator.Word, Token.Name.Tag)),
        ("s", (Token.Literal.String,)),
        ("c", (Token.Comment,)),
        ("m", (Token.Literal.Number,)),
        ("n", (Token.Name.Function, Token.Name.Class, Token.Name.Decorator, Token.Name.Attribute)),
        ("k", (Token.Generic.Heading, Token.Generic.Strong)),
    ):
        if any(kind in one for one in kinds):
            return class_
    return ""


_MAX_FILE_BYTES = 1 << 20
"""Size up to which a file is compared by lines."""
_MAX_LINES = 3000
"""Maximum number of lines of one file."""
_CONTEXT_LINES = 3


class PatchLine(NamedTuple):
    """A line with its number."""

    n: int
    html: Markup


class PatchSegment(NamedTuple):
    """Lines that are equal on both sides, or that replace each other."""

    same: bool
    old: list[PatchLine]
    new: list[PatchLine]


class FilePatch(NamedTuple):
    """The patch of one file. `note` says why lines are missing."""

    note: str
    hunks: list[list[PatchSegment]]
    added: int = 0
    removed: int = 0


class _PatchSide(NamedTuple):
    raw: list[bytes]
    pieces: list[list[StyledText]]


def file_patch(objects: ObjectStore, change: TreeChange) -> FilePatch:
    """Return the patch of a change. Binary and large files have only a note with their sizes."""
    if not change.content_changed and change.kind in ("metadata", "renamed"):
        what = (
            f"its {', '.join(change.fields)} changed" if change.fields else "only its name changed"
        )
        return FilePatch(what, [])
    before, after = _text(objects, change.old), _text(objects, change.new)
    if before is None or after is None:
        sizes = " -> ".join(
            output.format_size(one.size if one else 0) for one in (change.old, change.new)
        )
        return FilePatch(f"not shown as text ({sizes})", [])
    old, new = _side(change.old_path or change.path, before), _side(change.path, after)
    changes = line_diff.line_changes(old.raw, new.raw)
    added, removed = (
        sum(one.b1 - one.b0 for one in changes),
        sum(one.a1 - one.a0 for one in changes),
    )
    note, room = "", _MAX_LINES
    hunks: list[list[PatchSegment]] = []
    for group in _groups(changes):
        room -= sum(one.a1 - one.a0 + one.b1 - one.b0 for one in group) + 2 * _CONTEXT_LINES
        if room < 0 and hunks:
            note = "the rest is too long for a page: `ortet diff -p` has all"
            break
        hunks.append(_hunk(old, new, group))
    if not changes:
        note = "the same lines"
    return FilePatch(note, hunks, added, removed)


def _text(objects: ObjectStore, entry: TreeEntry | None) -> bytes | None:
    if entry is None or entry.is_dir:
        return b""
    if entry.is_link:
        return entry.data
    if not entry.is_file or entry.size > _MAX_FILE_BYTES:
        return None
    data = b"".join(read_file(objects, entry))
    return None if b"\0" in data else data


def _side(path: str, data: bytes) -> _PatchSide:
    raw = line_diff.split_lines(data)
    text = "\n".join(_display_line(line) for line in raw)
    return _PatchSide(raw, highlight_lines(path, text))


def _display_line(line: bytes) -> str:
    """Return a line without its end. Control characters are shown as escapes."""
    return output.safe(line.removesuffix(b"\n").decode("utf-8", "backslashreplace"), keep="\t")


def _groups(changes: list[line_diff.LineChange]) -> list[list[line_diff.LineChange]]:
    """Group changes that are close to each other into hunks."""
    groups: list[list[line_diff.LineChange]] = []
    for change in changes:
        if groups and change.a0 - groups[-1][-1].a1 <= 2 * _CONTEXT_LINES:
            groups[-1].append(change)
        else:
            groups.append([change])
    return groups


def _hunk(
    old: _PatchSide, new: _PatchSide, group: list[line_diff.LineChange]
) -> list[PatchSegment]:
    segments: list[PatchSegment] = []
    first, last = group[0], group[-1]
    before = min(_CONTEXT_LINES, first.a0, first.b0)
    a, b = first.a0 - before, first.b0 - before
    for change in group:
        _add_context(segments, old, new, a=a, b=b, size=change.a0 - a)
        segments.append(_changed_segment(old, new, change))
        a, b = change.a1, change.b1
    rest = min(_CONTEXT_LINES, len(old.raw) - last.a1, len(new.raw) - last.b1)
    _add_context(segments, old, new, a=a, b=b, size=rest)
    return segments


def _add_context(
    segments: list[PatchSegment], old: _PatchSide, new: _PatchSide, *, a: int, b: int, size: int
) -> None:
    if size > 0:
        left = [PatchLine(a + n + 1, _html(old.pieces[a + n])) for n in range(size)]
        right = [PatchLine(b + n + 1, _html(new.pieces[b + n])) for n in range(size)]
        segments.append(PatchSegment(True, left, right))


def _changed_segment(
    old: _PatchSide, new: _PatchSide, change: line_diff.LineChange
) -> PatchSegment:
    paired = change.a1 - change.a0 == change.b1 - change.b0
    left, right = [], []
    for n in range(change.a1 - change.a0):
        other = new.pieces[change.b0 + n] if paired else None
        left.append(
            PatchLine(change.a0 + n + 1, _highlight_difference(old.pieces[change.a0 + n], other))
        )
    for n in range(change.b1 - change.b0):
        other = old.pieces[change.a0 + n] if paired else None
        right.append(
            PatchLine(change.b0 + n + 1, _highlight_difference(new.pieces[change.b0 + n], other))
        )
    return PatchSegment(False, left, right)


def _highlight_difference(pieces: list[StyledText], other: list[StyledText] | None) -> Markup:
    """Return a line as HTML. If it mostly equals `other`, the difference is marked."""
    if other is None:
        return _html(pieces)
    mine, theirs = ("".join(text for _, text in one) for one in (pieces, other))
    most = min(len(mine), len(theirs))
    start = next((n for n in range(most) if mine[n] != theirs[n]), most)
    rest = most - start
    stop = next((n for n in range(rest) if mine[-1 - n] != theirs[-1 - n]), rest)
    if start + stop < most / 2:
        return _html(pieces)
    return _html(pieces, start, len(mine) - stop)


def _html(pieces: list[StyledText], start: int = 0, stop: int = 0) -> Markup:
    """Return escaped HTML. The range from `start` to `stop` is marked."""
    from markupsafe import Markup

    parts, position = [], 0
    for class_, text in pieces:
        cuts = [
            0,
            min(max(start - position, 0), len(text)),
            min(max(stop - position, 0), len(text)),
            len(text),
        ]
        for n, (low, high) in enumerate(pairwise(cuts)):
            if high > low:
                names = " ".join(filter(None, (class_, "x" if n == 1 and stop > start else "")))
                form = '<span class="{}">{}</span>' if names else "{1}"
                parts.append(Markup(form).format(names, text[low:high]))
        position += len(text)
    return Markup("").join(parts)
