"""Resources: what is recorded, by address, to be read into a conversation."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from ortet.cli import output
from ortet.errors import Invalid, NotFound
from ortet.mcp_server.answers import between, commit_of, joined, some
from ortet.mcp_server.tool import plain
from ortet.mcp_server.tools import conversation, history
from ortet.mcp_server.tools.effects import as_text, check_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from ortet.mcp_server.context import Desk

_PAGE = 100
_MARKDOWN = "text/markdown"
_JSON = "application/json"
_PLAIN = "text/plain"


class Content(NamedTuple):
    media: str
    text: str | None
    data: bytes = b""


class Address(NamedTuple):
    """A fixed address, or with {names} in it a family of them: {+name} may hold slashes."""

    uri: str
    name: str
    description: str
    media: str | None
    read: Callable[..., Content]

    @property
    def is_template(self) -> bool:
        return "{" in self.uri

    def match(self, uri: str) -> dict[str, str] | None:
        """What the names stand for in this address."""
        parts = re.split(r"\{(\+?)(\w+)\}", self.uri)
        pattern = re.escape(parts[0])
        for plus, name, after in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
            pattern += f"(?P<{name}>{'.+' if plus else '[^/]+'}){re.escape(after)}"
        found = re.fullmatch(pattern, uri, re.DOTALL)
        return found.groupdict() if found else None


def read(desk: Desk, uri: str) -> Content:
    for address in ADDRESSES:
        given = address.match(uri)
        if given is not None:
            words = {name: unquote(word, errors="surrogateescape") for name, word in given.items()}
            return address.read(desk, **words)
    known = ", ".join(address.uri for address in ADDRESSES)
    raise NotFound("no_resource", f"there is no resource {uri[:200]!r}: there are {known}")


def _briefing(desk: Desk) -> Content:
    if desk.begun() is None:
        return Content(_MARKDOWN, "Nothing is recorded here yet.\n")
    with desk.reading() as view:
        return Content(_MARKDOWN, view.briefing().markdown)


def _journal(desk: Desk, after: str | None = None) -> Content:
    if after is not None and not after.isdecimal():
        raise Invalid("bad_cursor", f"{after[:50]!r} is no event's number: give one from 0")
    with desk.reading() as view:
        found = conversation.page(view, None if after is None else int(after), _PAGE, ())
    return Content(_JSON, output.to_json(plain(found)))


def _commits(desk: Desk) -> Content:
    row = desk.begun()
    branch = row.branch if row else desk.branch() if desk.opened_hub else None
    if branch is None or desk.hub.refs.get(branch) is None:
        return Content(_PLAIN, "no commit yet\n")
    names = history.names_of(desk)
    found = desk.hub.history.log(desk.resolve("HEAD", branch), limit=_PAGE)
    lines = [f"{one.oid}  {commit_of(one, names.get(one.oid, []))}" for one in found]
    return Content(_PLAIN, "\n".join(lines) + "\n")


def _commit(desk: Desk, oid: str) -> Content:
    desk.need_store()
    found = desk.hub.history.info(desk.resolve(oid, desk.head_branch()))
    changes = between(desk, found.parents[0] if found.parents else None, found.oid)
    told = joined(
        f"commit {found.oid}",
        f"state {found.state}",
        *(f"parent {parent}" for parent in found.parents),
        f"author {output.safe(found.author)}",
        f"time {output.when(found.time)}",
        f"message {output.safe(found.message, keep=chr(10))}",
        f"{len(changes)} changed:",
        *some(f"{output.MARKS.get(one.kind, '?')} {output.safe(one.path)}" for one in changes),
    )
    return Content(_PLAIN, told + "\n")


def _file(desk: Desk, oid: str, path: str) -> Content:
    """Only what the commit's tree holds: nothing of the host can be reached by any path."""
    from ortet.objects.blobs import read_file

    parts = path.split("/")
    if path.startswith("/") or "\0" in path or not {"", ".", ".."}.isdisjoint(parts):
        raise Invalid("bad_path", f"{path[:200]!r}: give a path from the top of the workspace")
    desk.need_store()
    commit = desk.resolve(oid, desk.head_branch())
    entry = desk.hub.trees.resolve(desk.hub.history.image(commit).root, os.fsencode(path))
    if entry is None:
        raise NotFound("no_path", f"{path} is not in {output.short(commit.hex())}: look at its log")
    if not entry.is_file:
        raise Invalid("not_a_file", f"{path} is no file: give the path of one")
    check_size(path, entry.size)
    data = b"".join(read_file(desk.hub.objects, entry))
    return _content(path, data)


def _artifact(desk: Desk, name: str) -> Content:
    with desk.reading() as view:
        found = view.lineage(name).artifact
        check_size(found.name, found.size)
        if found.link and not found.oid:
            return Content(_PLAIN, found.link)
        return _content(found.name, view.artifact_data(found.name), found.media)


def _content(name: str, data: bytes, media: str = "") -> Content:
    from mimetypes import guess_type

    text = as_text(data)
    usual = _PLAIN if text is not None else "application/octet-stream"
    return Content(media or guess_type(name)[0] or usual, text, data)


ADDRESSES = (
    Address(
        "ortet://briefing",
        "briefing",
        "What whoever goes on with this work has to know.",
        _MARKDOWN,
        _briefing,
    ),
    Address(
        "ortet://journal",
        "journal",
        "The newest events of the session; `last` is the cursor for what comes later.",
        _JSON,
        _journal,
    ),
    Address(
        "ortet://journal/{after}",
        "journal_after",
        "Events behind a number, a hundred at a time.",
        _JSON,
        _journal,
    ),
    Address("ortet://commits", "commits", "The newest commits of the branch.", _PLAIN, _commits),
    Address(
        "ortet://commits/{oid}", "commit", "A commit, and which files it changed.", _PLAIN, _commit
    ),
    Address(
        "ortet://files/{oid}/{+path}",
        "file",
        "A file as it was at a commit; at most 1 MiB.",
        None,
        _file,
    ),
    Address(
        "ortet://artifacts/{+name}",
        "artifact",
        "The last version of a thing that the session made; at most 1 MiB.",
        None,
        _artifact,
    ),
)
