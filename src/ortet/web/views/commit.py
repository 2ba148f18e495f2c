"""The page of one commit: its message, the reasons for it, new facts and changed files."""

from __future__ import annotations

from shlex import quote
from typing import Any

from starlette.responses import Response

from ortet.cli.terminal import output
from ortet.history.diff.tree_diff import TreeChange
from ortet.hub.hub import Hub
from ortet.ids import Oid, to_hex
from ortet.server.schemas import visible_sessions
from ortet.sessions.history.compare import CommitExplanation, explain_commit
from ortet.sessions.history.load import load_event_log
from ortet.sessions.table import SessionRow
from ortet.web.request import PageRequest
from ortet.web.views.replay import journal_at, passes_through

_MAX_REASONS, _MAX_FILES = 300, 500


def commit_page(page_request: PageRequest) -> Response:
    """Render the commit page; with `?part`, only the panel beside the tree."""
    row = page_request.row()
    with page_request.hub() as hub:
        oid = page_request.resolve_commit(hub, page_request.path_params["commit"])
        explanation = explain_commit(hub.internals.services, oid, limit=_MAX_REASONS)
        part = "part" in page_request.query
        return page_request.render(
            "commit_part.html" if part else "commit.html",
            row=row,
            part=part,
            details=explanation,
            names=_names(page_request, hub, oid),
            files=[file_line(one) for one in explanation.files[:_MAX_FILES]],
            tally=output.change_counts(explanation.files)[0],
            commands=restore_commands(row, explanation),
            head=_head(hub, row),
            replayed=_is_replayed(hub, row, oid),
        )


def restore_commands(row: SessionRow, details: CommitExplanation) -> list[tuple[str, str]]:
    """Return (description, command) pairs that restore the commit."""
    oid = output.short_id(details.commit.oid)
    if not row.has_files:
        name = row.name if row.agent == "default" else f"{row.name}', agent='{row.agent}"
        return [("Go back to it", f"ortet.open().session('{name}').restore('{oid}')")]
    return [
        ("Go back to it, files and mind", f"ortet restore {oid} -w {quote(row.branch)}"),
        ("Look at its files elsewhere", f"ortet restore {oid} --to ./then"),
    ]


def file_line(change: TreeChange) -> dict[str, Any]:
    """Return one changed path for a list of files."""
    entry = change.new or change.old
    slash = "/" if entry is not None and entry.is_dir else ""
    return {
        "mark": output.CHANGE_MARKS[change.kind],
        "kind": change.kind,
        "path": output.safe(change.path) + slash,
        "old": output.safe(change.old_path) if change.old_path else "",
        "what": ", ".join(change.fields) if change.kind == "metadata" else "",
        "size": change.new.size if change.new and change.new.is_file else None,
    }


def _names(page_request: PageRequest, hub: Hub, oid: Oid) -> list[tuple[str, str, str]]:
    """Return the branches and tags at a commit: kind, name and session id."""
    names = []
    for row in visible_sessions(hub, page_request.caller):
        head = hub.catalog.head(f"branch:{row.branch}")
        if head is not None and head.oid == oid:
            names.append(("branch", row.name, row.id))
    names += [("tag", tag.name, "") for tag in hub.refs.tags() if tag.oid == oid]
    return names


def _is_replayed(hub: Hub, row: SessionRow, oid: Oid) -> bool:
    """Return True if a replay of the session reaches this commit."""
    line = load_event_log(hub.internals.services, row)[0]
    journal = journal_at(hub, oid)
    return journal.seq <= line.tip().seq and passes_through(line, hub, journal)


def _head(hub: Hub, row: SessionRow) -> str:
    head = hub.catalog.head(f"branch:{row.branch}")
    return to_hex(head.oid) if head is not None else ""
