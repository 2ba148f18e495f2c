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
    """Commits, the newest first. `more`: older commits were left out."""

    commits: list[CommitItem]
    more: bool

    def __str__(self) -> str:
        return join_lines(
            *map(str, self.commits),
            "" if self.commits else "no commit yet",
            "more: give the last id with ^ as ref" if self.more else "",
        )


@tool(READS)
def log(
    context: McpContext,
    *,
    ref: Ref = "HEAD",
    limit: Annotated[int, Meta(description="The maximum number of results.", ge=1, le=1000)] = 20,
) -> LogToolResult:
    """List commits, newest first. Each is a state of the session and its files that can be
    restored.
    """
    context.require_store()
    start = context.call.resolve(ref, context.head_branch())
    infos = list(context.hub.history.log(start, limit=limit + 1))
    names = names_of(context)
    commits = [commit_of(one, names.get(one.oid, [])) for one in infos[:limit]]
    return LogToolResult(commits, len(infos) > limit)


def names_of(context: McpContext) -> dict[str, list[str]]:
    """Return the branches and tags of each commit id."""
    names: dict[str, list[str]] = {}
    for head in context.hub.refs.branches():
        names.setdefault(head.oid.hex(), []).append(head.name)
    for head in context.hub.refs.tags():
        names.setdefault(head.oid.hex(), []).append(f"tag:{head.name}")
    return names


class DiffToolResult(ToolResult, frozen=True):
    """`new`: "" for the present files. `changed`: the number of all changes. `changes`: the first
    200 of them.
    """

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
    context: McpContext,
    *,
    ref: Ref = "HEAD",
    other: Annotated[
        str | None, Meta(description="The commit to compare with; by default the present files.")
    ] = None,
    patch: Annotated[bool, Meta(description="Show the changed lines of text files.")] = False,
) -> DiffToolResult:
    """Show which files differ between a commit and the present files, or between two commits."""
    context.require_store()
    branch = context.head_branch()
    old = context.call.resolve(ref, branch).hex()
    new = context.call.resolve(other, branch).hex() if other is not None else ""
    if new:
        differing = changed_files(context, old, new)
    else:
        with context.open_files() as files:
            differing = files.diff(old) if files is not None else []
    left, changes = _MAX_ALL_PATCHES_CHARACTERS, []
    for change in differing[:MAX_CHANGES]:
        text = output.patch_text(change, context.hub.objects) if patch and left > 0 else ""
        text = cut_middle(text, min(_MAX_PATCH_CHARACTERS, left))
        left -= len(text)
        changes.append(change_of(change, text))
    return DiffToolResult(old, new, len(differing), changes)
