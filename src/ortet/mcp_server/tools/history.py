"""Tools for commits: log and diff."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ortet.cli.terminal import output
from ortet.mcp_server.context import McpContext
from ortet.mcp_server.tool import (
    MAX_CHANGES,
    READS,
    Change,
    CommitItem,
    ToolResult,
    change_of,
    changed_files,
    commit_of,
    cut_middle,
    join_lines,
    limit_lines,
    tool,
)

_MAX_PATCH_CHARACTERS = 8_000
"""Maximum length of the patch of one file."""

_MAX_ALL_PATCHES_CHARACTERS = 60_000
"""Maximum length of all patches in an answer."""

Ref = Annotated[
    str,
    Meta(
        description="A commit: an id or 4 or more of its first digits, a branch or tag, HEAD, "
        "HEAD~2 (two back), HEAD@{1} (where the branch was one move ago)."
    ),
]


class LogToolResult(ToolResult, frozen=True):
    """Newest first; `more` says whether older ones were left out."""

    commits: list[CommitItem]
    more: bool

    def __str__(self) -> str:
        return join_lines(
            *map(str, self.commits),
            "" if self.commits else "no commit yet",
            "older ones: give the last id with ^ as ref" if self.more else "",
        )


@tool(READS)
def log(
    desk: McpContext,
    *,
    ref: Ref = "HEAD",
    limit: Annotated[int, Meta(description="The maximum number of results.", ge=1, le=1000)] = 20,
) -> LogToolResult:
    """List commits, newest first. Each is a state of the session and its files that can be
    restored.
    """
    desk.require_store()
    start = desk.call.resolve(ref, desk.head_branch())
    found = list(desk.hub.history.log(start, limit=limit + 1))
    names = names_of(desk)
    commits = [commit_of(one, names.get(one.oid, [])) for one in found[:limit]]
    return LogToolResult(commits, len(found) > limit)


def names_of(context: McpContext) -> dict[str, list[str]]:
    """Return the branches and tags of each commit id."""
    found: dict[str, list[str]] = {}
    for head in context.hub.refs.branches():
        found.setdefault(head.oid.hex(), []).append(head.name)
    for head in context.hub.refs.tags():
        found.setdefault(head.oid.hex(), []).append(f"tag:{head.name}")
    return found


class DiffToolResult(ToolResult, frozen=True):
    """`new` is "" for the present files; `changed` counts all, `changes` lists the first 200."""

    old: str
    new: str
    changed: int
    changes: list[Change]

    def __str__(self) -> str:
        to = output.short_id(self.new) if self.new else "the present files"
        patches = [one.patch for one in self.changes if one.patch]
        return join_lines(
            f"from {output.short_id(self.old)} to {to}: {self.changed or 'nothing'} changed",
            *limit_lines(self.changes, self.changed),
            *(output.safe(patch, keep="\n\t").rstrip("\n") for patch in patches),
        )


@tool(READS)
def diff(
    desk: McpContext,
    *,
    ref: Ref = "HEAD",
    other: Annotated[
        str | None, Meta(description="The commit to compare with; by default the present files.")
    ] = None,
    patch: Annotated[bool, Meta(description="Show the changed lines of text files.")] = False,
) -> DiffToolResult:
    """Show which files differ between a commit and the present files, or between two commits."""
    desk.require_store()
    branch = desk.head_branch()
    old = desk.call.resolve(ref, branch).hex()
    new = desk.call.resolve(other, branch).hex() if other is not None else ""
    if new:
        found = changed_files(desk, old, new)
    else:
        with desk.open_files() as files:
            found = files.diff(old) if files is not None else []
    left, changes = _MAX_ALL_PATCHES_CHARACTERS, []
    for one in found[:MAX_CHANGES]:
        text = output.patch_text(one, desk.hub.objects) if patch and left > 0 else ""
        text = cut_middle(text, min(_MAX_PATCH_CHARACTERS, left))
        left -= len(text)
        changes.append(change_of(one, text))
    return DiffToolResult(old, new, len(found), changes)
