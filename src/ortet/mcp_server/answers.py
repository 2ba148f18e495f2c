"""What tools give back, and how a model reads it. Field names are those of `--json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ortet._util.structs import known
from ortet.cli import output
from ortet.mcp_server.tool import Answer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ortet.history.commits import CommitInfo
    from ortet.history.diff import tree_diff
    from ortet.history.records import Image
    from ortet.mcp_server.context import Desk

MOST = 200
"""Changes that are listed; more are counted."""

_LINES = 40
"""The same in text."""


class Commit(Answer, frozen=True):
    oid: str
    state: str
    parents: list[str]
    message: str
    time: int
    author: str
    refs: list[str] = []

    def __str__(self) -> str:
        names = f" ({', '.join(map(output.safe, self.refs))})" if self.refs else ""
        when = output.when(self.time)
        return f"{output.short(self.oid)}  {when}{names}  {output.title(self.message)}".rstrip()


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    path: str
    kind: str
    old_path: str = ""
    fields: list[str] = []
    patch: str = ""

    def __str__(self) -> str:
        moved = f"{output.safe(self.old_path)} -> " if self.old_path else ""
        what = f" ({', '.join(self.fields)})" if self.kind == "metadata" else ""
        return f"{output.MARKS.get(self.kind, '?')} {moved}{output.safe(self.path)}{what}"


class Loss(msgspec.Struct, frozen=True):
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


def commit_of(info: CommitInfo, refs: Sequence[str] = ()) -> Commit:
    return Commit(**output.fields(info), refs=list(refs))


def change_of(found: tree_diff.Change, patch: str = "") -> Change:
    return Change(found.path, found.kind, found.old_path or "", list(found.fields), patch)


def changes_of(found: Iterable[tree_diff.Change]) -> list[Change]:
    return [change_of(one) for one in found][:MOST]


def deed_of(effect: Any) -> Deed:
    return msgspec.convert(effect, known(Deed), from_attributes=True)


def losses_of(losses: Iterable[Any]) -> list[Loss]:
    return [Loss(one.path, one.what, one.why) for one in losses]


def some(lines: Iterable[object], total: int | None = None) -> list[str]:
    """As many as are read, and how many more there are."""
    shown = [str(line) for line in lines]
    count = len(shown) if total is None else total
    rest = count - min(_LINES, len(shown))
    return shown[:_LINES] + ([f"... and {rest} more"] if rest > 0 else [])


def joined(*lines: str) -> str:
    return "\n".join(line for line in lines if line)


def ends_of(text: str, most: int) -> str:
    """Of a long text, the beginning and the end."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def image_at(desk: Desk, commit: str) -> Image | None:
    """The files of a commit, if it holds any."""
    from ortet.ids import from_hex

    oid = from_hex(commit)
    return desk.hub.history.image(oid) if desk.hub.history.state(oid).machine else None


def between(desk: Desk, old: str | None, new: str) -> list[tree_diff.Change]:
    """What differs in files."""
    from ortet.history.diff.tree_diff import diff_images

    before, after = (image_at(desk, ref) if ref else None for ref in (old, new))
    if after is None:
        return []
    return diff_images(desk.hub.trees, before, after)
