"""The first page: a list of sessions with their goal, cost and last activity.

All session rows are read. Goal, cost and last commit are read only for the sessions on the page.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import msgspec
from starlette.responses import Response

from ortet.cli.terminal import output
from ortet.errors import OrtetError
from ortet.hub.hub import Hub
from ortet.server.auth.tokens import Caller
from ortet.server.pagination import Cursor, Sort, sort_sessions
from ortet.server.schemas import visible_sessions
from ortet.sessions.actions.budget import levels
from ortet.sessions.memory import recall
from ortet.sessions.reader import SessionReader
from ortet.sessions.table import SessionRow, last_active
from ortet.web.request import PageRequest, parse_query

STATUSES = ("open", "active", "paused", "closed", "archived")
SESSIONS_PER_PAGE = 50
_MAX_GOALS_SEARCHED = 300
"""Number of sessions, from the start of the list, whose goals are searched. All names are."""
MAX_SESSIONS_SEARCHED = 500
"""Number of sessions, from the start of the list, whose memory is searched, because it is slow."""
_RECALL_LIMIT = 30
"""Maximum number of recalled memories per search."""


class SessionListQuery(msgspec.Struct, frozen=True):
    """The query of the page."""

    q: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    status: str = ""
    agent: str = ""
    sort: Sort = "activity"
    after: Cursor = ""
    before: Cursor = ""


class SessionCard(msgspec.Struct, frozen=True):
    """One session. `match` is the text that matched, if it is not the name."""

    id: str
    name: str
    agent: str
    status: str
    created: int
    touched: int
    goal: str
    spent: dict[str, float]
    head: str
    message: str
    live: bool
    parent: str
    events: int
    match: str = ""
    fault: str = ""


class SessionListPage(msgspec.Struct, frozen=True):
    """One page of the list.

    `total` counts all sessions, `count` those that match. `first` is the number of the first one on
    the page. `heard` is the number of sessions whose memory was searched; 0 means all. `newer` and
    `older` are cursors of the neighbouring pages.
    """

    cards: list[SessionCard]
    ask: SessionListQuery
    agents: list[str]
    counts: dict[str, int]
    total: int
    count: int
    first: int
    heard: int
    newer: str = ""
    older: str = ""


def build_session_list(
    hub: Hub, caller: Caller, ask: SessionListQuery, has_live_machine: Callable[[str], bool]
) -> SessionListPage:
    """Return the data of the page. `has_live_machine` tells if a session's machine runs here."""
    rows = visible_sessions(hub, caller)
    agents = sorted({row.agent for row in rows})
    selected = [row for row in rows if ask.agent in ("", row.agent)]
    count = Counter(row.status for row in selected)
    counts = {name: count[name] for name in STATUSES}
    selected = [row for row in selected if ask.status in ("", row.status)]
    line = sort_sessions(hub.catalog, selected, ask.sort)
    words = ask.q.strip()
    matches: dict[str, str] = {}
    heard = MAX_SESSIONS_SEARCHED if words and len(selected) > MAX_SESSIONS_SEARCHED else 0
    if words:
        matches = dict(_match_sessions(hub, line.rows, words))
        line = line.filter_ids(matches)
    start = line.index_after(ask.after) if ask.after else 0
    if ask.before or start >= len(line.rows):  # sessions after the cursor may be gone
        start = max(0, (line.index_before(ask.before) if ask.before else start) - SESSIONS_PER_PAGE)
    end = min(start + SESSIONS_PER_PAGE, len(line.rows))
    shown = line.rows[start:end]
    touched = line.activity_times or last_active(hub.catalog, shown)
    return SessionListPage(
        cards=[
            build_session_card(
                hub,
                row,
                touched[row.id],
                live=has_live_machine(row.id),
                match=matches.get(row.id, ""),
            )
            for row in shown
        ],
        ask=ask,
        agents=agents,
        counts=counts,
        total=len(rows),
        count=len(line.rows),
        first=start + 1,
        heard=heard,
        newer=line.cursor(start) if 0 < start < end else "",
        older=line.cursor(end - 1) if start < end < len(line.rows) else "",
    )


def build_session_card(
    hub: Hub, row: SessionRow, last_active_ns: int, *, live: bool, match: str = ""
) -> SessionCard:
    """Return the card of a session. If the session cannot be read, `fault` says why."""
    card = SessionCard(
        id=row.id,
        name=row.name,
        agent=row.agent,
        status=row.status,
        created=row.created,
        touched=last_active_ns,
        goal="",
        spent={},
        head="",
        message="",
        live=live,
        parent=row.parent,
        events=0,
        match=match,
    )
    try:
        view = hub.get(row.id)
        head, tip = view.head, view.internals.event_log.tip().seq
        return msgspec.structs.replace(
            card,
            goal=view.goal,
            spent=_spent(view),
            head=head.oid if head else "",
            message=output.title(head.message) if head else "",
            events=tip,
        )
    except OrtetError as error:  # a damaged session must not hide the others
        return msgspec.structs.replace(card, fault=error.message)


def _spent(view: SessionReader) -> dict[str, float]:
    """Return the spending: of the whole family for its first session, else of the fork alone."""
    if view.id == view.internals.row.family:
        return view.accounting.spent()
    return levels(view.internals.store.catalog, view.internals.row)[0].purse.spent


def _match_sessions(hub: Hub, rows: Sequence[SessionRow], words: str) -> Iterator[tuple[str, str]]:
    """Yield matching sessions, each with the text that matched.

    The best match of a session is last.
    """
    small = words.lower()
    yield from _recall_matches(hub, rows[:MAX_SESSIONS_SEARCHED], words)
    for row in rows[:_MAX_GOALS_SEARCHED]:
        try:
            goal = hub.get(row.id).goal
        except OrtetError:
            continue
        if small in goal.lower():
            yield row.id, ""  # the goal is always shown
    for row in rows:
        if small in row.name.lower() or small in row.id:
            yield row.id, ""


def _recall_matches(hub: Hub, rows: Sequence[SessionRow], words: str) -> Iterator[tuple[str, str]]:
    """Yield sessions whose messages or facts contain the words."""
    minds, known = hub.internals.session_manager, {row.id for row in rows}
    among = sorted(rows, key=lambda row: (row.created, len(row.name), row.name))
    reach = recall.all_searchable_logs(
        minds.services, agent=None, session=None, word=None, among=among
    )
    query = recall.parse_query(
        words, _RECALL_LIMIT, tiers=None, at=None, on=None, since=None, scope=None
    )
    for hit in reversed(recall.recall(minds.services, reach, query, explain=True)):
        exact = hit.scores is not None and hit.scores.terms
        if hit.source.session in known and exact:
            yield hit.source.session, output.single_line(hit.text)[:200]


def sessions(page_request: PageRequest) -> Response:
    """Render the first page."""
    ask = parse_query(page_request, SessionListQuery)
    with page_request.hub() as hub:
        page = build_session_list(
            hub, page_request.caller, ask, page_request.session_pool.has_live_machine
        )
    command = f"ortet recall --all {shlex.quote(ask.q.strip())}"
    return page_request.render("sessions.html", page=page, statuses=STATUSES, command=command)
