"""The timeline page of a session: its commit graph, and the rows as JSON for the script."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.responses import Response

from ortet.errors import Invalid, NotFound
from ortet.history.diff.tree_diff import is_directory_touch
from ortet.hub.hub import Hub, hub_of
from ortet.journal.conversation.text import text_of
from ortet.sessions.history.compare import compare, files_between
from ortet.sessions.reader import SessionReader
from ortet.web.request import PageRequest, PageView
from ortet.web.views import commit, replay
from ortet.web.views.commit import file_line
from ortet.web.views.patch import file_patch
from ortet.web.views.replay import CommitJournalIndex
from ortet.web.views.timeline_graph import SessionFamily, TimelineGraphCache

# The page that compares two commits: files, facts, plan, messages.

_MAX_FILES = 300
_MAX_PATCH_LINES = 4000
"""Maximum number of patch lines on the page. Patches of further files are loaded when opened."""
_MAX_MESSAGES = 100


def compare_page(page_request: PageRequest) -> Response:
    """Render the comparison.

    Commits may have any of their names. With `?file=N`, render one patch.
    """
    row = page_request.row()
    with page_request.hub() as hub:
        old, new = (
            page_request.resolve_commit(hub, page_request.path_params[name]) for name in ("a", "b")
        )
        if "file" in page_request.query:
            changes = [
                one for one in files_between(hub.store, old, new) if not is_directory_touch(one)
            ]
            number = page_request.query["file"]
            plain = number.isascii() and number.isdigit() and len(number) < 10
            if not (plain and int(number) < len(changes)):
                raise NotFound(
                    "no_file", "the two commits do not differ in this file: load the page again"
                )
            return page_request.render(
                "patch.html", patch=file_patch(hub.objects, changes[int(number)])
            )
        comparison = compare(hub.internals.services, old, new, limit=_MAX_MESSAGES)
        room, files = _MAX_PATCH_LINES, list[dict[str, Any]]()
        changes = [one for one in comparison.files if not is_directory_touch(one)]
        for change in changes[:_MAX_FILES]:
            patch = file_patch(hub.objects, change) if room > 0 else None
            if patch is not None:
                room -= sum(len(s.old) + len(s.new) for hunk in patch.hunks for s in hunk) + 2
            files.append({**file_line(change), "patch": patch})
        return page_request.render(
            "compare.html",
            row=row,
            old=hub.history.info(old),
            new=hub.history.info(new),
            comparison=comparison,
            files=files,
            more=len(changes) - len(files),
            said=text_of,
        )


_FIRST_ROWS = 200
"""Number of rows that are sent first; more than a screen shows."""


def pages() -> tuple[tuple[str, PageView], ...]:
    """Return the paths and views of the commit pages, with the caches that they share."""
    grove = TimelineGraphCache()
    return (
        ("/s/{session}", timeline_page),
        ("/s/{session}/tree.json", partial(tree_rows, grove)),
        ("/s/{session}/c/{commit}", commit.commit_page),
        ("/s/{session}/compare/{a}/{b}", compare_page),
        ("/s/{session}/replay", partial(replay.replay_page, CommitJournalIndex())),
    )


def timeline_page(page_request: PageRequest) -> Response:
    """Render the frame of the graph and the overview of the session."""
    with page_request.view() as view:
        family = load_family(page_request, hub_of(view))
        return page_request.render(
            "tree.html", tab="timeline", row=view.internals.row, **overview(view, family)
        )


def overview(view: SessionReader, family: SessionFamily) -> dict[str, Any]:
    """Return the template variables of a session's overview."""
    core = view.internals.state.core
    spent, limits = view.accounting.spent(), view.accounting.limits()
    return {
        "goal": core.goal,
        "plan": list(core.plan),
        "step": core.step,
        "spent": sorted(spent.items()),
        "limits": limits,
        "family": family,
        "head": view.head,
        "events": view.internals.event_log.tip().seq,
        "first": _FIRST_ROWS,
    }


def tree_rows(graphs: TimelineGraphCache, page_request: PageRequest) -> Response:
    """Return rows of the graph as JSON; `?from=N&upto=M` selects some."""
    start, stop = _number(page_request, "from", 0), _number(page_request, "upto", 1 << 53)
    with page_request.hub() as hub:
        family = load_family(page_request, hub)
        if not start and stop <= _FIRST_ROWS:
            sketch = graphs.partial_graph(hub, page_request.caller, family, stop)
            if sketch is not None:
                return page_request.json_response(sketch.rows_json(0, stop))
        drawing = graphs.graph(hub, page_request.caller, family)
    return page_request.json_response(
        drawing.rows_json(start, stop), f'"{drawing.tag}-{start}-{stop}"'
    )


def load_family(page_request: PageRequest, hub: Hub) -> SessionFamily:
    """Return the family of the request's session."""
    return SessionFamily.load(
        hub, page_request.session_pool, page_request.caller, page_request.row()
    )


def _number(page_request: PageRequest, name: str, default: int) -> int:
    text = page_request.query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 17):
        raise Invalid("bad_request", f"{name} is a whole number from 0: correct the address")
    return int(text)
