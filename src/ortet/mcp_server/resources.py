"""MCP resources: recorded content that clients read by address."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from ortet.cli.terminal import output
from ortet.errors import Invalid, NotFound
from ortet.mcp_server.tool import changed_files, commit_of, join_lines, limit_lines, to_jsonable
from ortet.mcp_server.tools import conversation, history
from ortet.mcp_server.tools.effects import as_text, check_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from ortet.mcp_server.context import McpContext

_ITEMS_PER_PAGE = 100
_MARKDOWN = "text/markdown"
_JSON = "application/json"
_PLAIN = "text/plain"


class ResourceContent(NamedTuple):
    """The content of a resource: `text`, or `data` if it is binary."""

    media: str
    text: str | None
    data: bytes = b""


class ResourceAddress(NamedTuple):
    """An address or a template with {names}. A {+name} may contain slashes."""

    uri: str
    name: str
    description: str
    media: str | None
    read: Callable[..., ResourceContent]

    @property
    def is_template(self) -> bool:
        """True if the address has names to fill in."""
        return "{" in self.uri

    def match(self, uri: str) -> dict[str, str] | None:
        """Return the values of the names in this address, or None if it does not match."""
        parts = re.split(r"\{(\+?)(\w+)\}", self.uri)
        pattern = re.escape(parts[0])
        for plus, name, after in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
            pattern += f"(?P<{name}>{'.+' if plus else '[^/]+'}){re.escape(after)}"
        matched = re.fullmatch(pattern, uri, re.DOTALL)
        return matched.groupdict() if matched else None


def read_resource(context: McpContext, uri: str) -> ResourceContent:
    """Return the content of an address. Raises NotFound if there is no such resource."""
    for address in ADDRESSES:
        names = address.match(uri)
        if names is not None:
            words = {name: unquote(word, errors="surrogateescape") for name, word in names.items()}
            return address.read(context, **words)
    known = ", ".join(address.uri for address in ADDRESSES)
    raise NotFound("no_resource", f"there is no resource {uri[:200]!r}: there are {known}")


def _briefing(context: McpContext) -> ResourceContent:
    if context.current_session() is None:
        return ResourceContent(_MARKDOWN, "Nothing is recorded here yet.\n")
    with context.read_session() as view:
        return ResourceContent(_MARKDOWN, view.briefing().markdown)


def _journal(context: McpContext, after: str | None = None) -> ResourceContent:
    if after is not None and not after.isdecimal():
        raise Invalid("bad_cursor", f"{after[:50]!r} is no event's number: give one from 0")
    with context.read_session() as view:
        page = conversation.journal_page(
            view, None if after is None else int(after), _ITEMS_PER_PAGE, ()
        )
    return ResourceContent(_JSON, output.to_json(to_jsonable(page)))


def _commits(context: McpContext) -> ResourceContent:
    row = context.current_session()
    branch = row.branch if row else context.call.branch() if context.has_hub else None
    if branch is None or context.hub.refs.get(branch) is None:
        return ResourceContent(_PLAIN, "no commit yet\n")
    names = history.names_of(context)
    commits = context.hub.history.log(context.call.resolve("HEAD", branch), limit=_ITEMS_PER_PAGE)
    lines = [f"{one.oid}  {commit_of(one, names.get(one.oid, []))}" for one in commits]
    return ResourceContent(_PLAIN, "\n".join(lines) + "\n")


def _commit(context: McpContext, oid: str) -> ResourceContent:
    context.require_store()
    info = context.hub.history.info(context.call.resolve(oid, context.head_branch()))
    changes = changed_files(context, info.parents[0] if info.parents else None, info.oid)
    text = join_lines(
        f"commit {info.oid}",
        f"state {info.state}",
        *(f"parent {parent}" for parent in info.parents),
        f"author {output.safe(info.author)}",
        f"time {output.format_time(info.time)}",
        f"message {output.safe(info.message, keep=chr(10))}",
        f"{len(changes)} changed:",
        *limit_lines(
            f"{output.CHANGE_MARKS.get(one.kind, '?')} {output.safe(one.path)}" for one in changes
        ),
    )
    return ResourceContent(_PLAIN, text + "\n")


def _file(context: McpContext, oid: str, path: str) -> ResourceContent:
    """Read a file from the tree of a commit. No path can reach files of the host."""
    from ortet.objects.blobs import read_file

    parts = path.split("/")
    if path.startswith("/") or "\0" in path or not {"", ".", ".."}.isdisjoint(parts):
        raise Invalid("bad_path", f"{path[:200]!r}: give a path from the top of the workspace")
    context.require_store()
    commit = context.call.resolve(oid, context.head_branch())
    entry = context.hub.trees.resolve(context.hub.history.image(commit).root, os.fsencode(path))
    if entry is None:
        raise NotFound(
            "no_path", f"{path} is not in {output.short_id(commit.hex())}: look at its log"
        )
    if not entry.is_file:
        raise Invalid("not_a_file", f"{path} is no file: give the path of one")
    check_size(path, entry.size)
    data = b"".join(read_file(context.hub.objects, entry))
    return _content(path, data)


def _artifact(context: McpContext, name: str) -> ResourceContent:
    with context.read_session() as view:
        record = view.artifact_store.lineage(name).artifact
        check_size(record.name, record.size)
        if record.link and not record.oid:
            return ResourceContent(_PLAIN, record.link)
        return _content(record.name, view.artifact_store.artifact_data(record.name), record.media)


def _content(name: str, data: bytes, media: str = "") -> ResourceContent:
    from mimetypes import guess_type

    text = as_text(data)
    usual = _PLAIN if text is not None else "application/octet-stream"
    return ResourceContent(media or guess_type(name)[0] or usual, text, data)


ADDRESSES = (
    ResourceAddress(
        "ortet://briefing",
        "briefing",
        "The briefing for whoever continues this work.",
        _MARKDOWN,
        _briefing,
    ),
    ResourceAddress(
        "ortet://journal",
        "journal",
        "The newest events of the session; `last` is the cursor for later events.",
        _JSON,
        _journal,
    ),
    ResourceAddress(
        "ortet://journal/{after}",
        "journal_after",
        "Events after a number, at most a hundred.",
        _JSON,
        _journal,
    ),
    ResourceAddress(
        "ortet://commits", "commits", "The newest commits of the branch.", _PLAIN, _commits
    ),
    ResourceAddress(
        "ortet://commits/{oid}", "commit", "A commit, and which files it changed.", _PLAIN, _commit
    ),
    ResourceAddress(
        "ortet://files/{oid}/{+path}",
        "file",
        "A file as it was at a commit; at most 1 MiB.",
        None,
        _file,
    ),
    ResourceAddress(
        "ortet://artifacts/{+name}",
        "artifact",
        "The last version of an artifact of the session; at most 1 MiB.",
        None,
        _artifact,
    ),
)
