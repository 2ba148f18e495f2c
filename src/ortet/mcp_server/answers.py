"""Result types that several tools share, and their text for a model.

Field names are those of `--json`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ortet._util.structs import thread_safe_struct
from ortet.cli import output
from ortet.mcp_server.tool import ToolResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ortet.history.commits import CommitInfo
    from ortet.history.diff import tree_diff
    from ortet.history.records import Image
    from ortet.mcp_server.context import McpContext

MAX_CHANGES = 200
"""Maximum number of changes in a list; all are counted."""

_MAX_LINES = 40
"""Maximum number of lines of a list in the text of a result."""


class CommitItem(ToolResult, frozen=True):
    oid: str
    state: str
    parents: list[str]
    message: str
    time: int
    author: str
    refs: list[str] = []

    def __str__(self) -> str:
        names = f" ({', '.join(map(output.safe, self.refs))})" if self.refs else ""
        when = output.format_time(self.time)
        return f"{output.short_id(self.oid)}  {when}{names}  {output.title(self.message)}".rstrip()


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    path: str
    kind: str
    old_path: str = ""
    fields: list[str] = []
    patch: str = ""

    def __str__(self) -> str:
        moved = f"{output.safe(self.old_path)} -> " if self.old_path else ""
        what = f" ({', '.join(self.fields)})" if self.kind == "metadata" else ""
        return f"{output.CHANGE_MARKS.get(self.kind, '?')} {moved}{output.safe(self.path)}{what}"


class LossItem(msgspec.Struct, frozen=True):
    path: str
    what: str
    why: str

    def __str__(self) -> str:
        return f"{output.safe(self.path) or self.what}: {self.what} ({output.safe(self.why)})"


class Deed(msgspec.Struct, frozen=True, omit_defaults=True):
    """An effect on the world; `state` is begun, done, failed or unsettled. `command`: what was
    run."""

    id: str
    name: str
    state: str
    replay: str
    time: int
    why: str = ""
    key: str = ""
    command: str = ""

    def __str__(self) -> str:
        command = f": {output.title(self.command)}" if self.command else ""
        why = f"  ({output.title(self.why)})" if self.why else ""
        return f"{self.id}  {self.state}  {output.safe(self.name)}{command}{why}"


def commit_of(info: CommitInfo, refs: Sequence[str] = ()) -> CommitItem:
    """Return a commit with the names of branches and tags on it."""
    return CommitItem(**output.fields(info), refs=list(refs))


def change_of(change: tree_diff.TreeChange, patch: str = "") -> Change:
    """Return one changed file, with its patch if there is one."""
    return Change(change.path, change.kind, change.old_path or "", list(change.fields), patch)


def changes_of(changes: Iterable[tree_diff.TreeChange]) -> list[Change]:
    """Return the first `MAX_CHANGES` changes."""
    return [change_of(one) for one in changes][:MAX_CHANGES]


def effect_of(effect: Any) -> Deed:
    """Return an effect with the fields that tools show."""
    return msgspec.convert(effect, thread_safe_struct(Deed), from_attributes=True)


def losses_of(losses: Iterable[Any]) -> list[LossItem]:
    """Return the losses of a restore or commit."""
    return [LossItem(one.path, one.what, one.why) for one in losses]


def limit_lines(lines: Iterable[object], total: int | None = None) -> list[str]:
    """Return the first lines as text, and a line with the number of those left out."""
    shown = [str(line) for line in lines]
    count = len(shown) if total is None else total
    rest = count - min(_MAX_LINES, len(shown))
    return shown[:_MAX_LINES] + ([f"... and {rest} more"] if rest > 0 else [])


def join_lines(*lines: str) -> str:
    """Join the lines that are not empty."""
    return "\n".join(line for line in lines if line)


def cut_middle(text: str, max_characters: int) -> str:
    """Return a long text without its middle."""
    if len(text) <= max_characters:
        return text
    half = max_characters // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def image_at(context: McpContext, commit: str) -> Image | None:
    """Return the image of a commit, or None if the commit has no files."""
    from ortet.ids import from_hex

    oid = from_hex(commit)
    return context.hub.history.image(oid) if context.hub.history.state(oid).machine else None


def changed_files(context: McpContext, old: str | None, new: str) -> list[tree_diff.TreeChange]:
    """Return the differences of files between two commits."""
    from ortet.history.diff.tree_diff import diff_images

    before, after = (image_at(context, ref) if ref else None for ref in (old, new))
    if after is None:
        return []
    return diff_images(context.hub.trees, before, after)
