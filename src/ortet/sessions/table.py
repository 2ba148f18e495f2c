"""The table of sessions: catalog rows, names, and the legal changes of status."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import msgspec

from ortet._util.codec import decode, encode
from ortet.backends.base import Catalog, RowChange, Timeline
from ortet.errors import Conflict, Corrupt, Invalid, NotFound
from ortet.history.records import EventHeader
from ortet.journal.event_log import TimelineSpan
from ortet.journal.events import header_time

# Paths of timelines from the root to their ends, computed for many at once.

_PAGE = 1000


class TimelinePaths:
    """The timeline spans of many sessions, as `EventLog.timeline_spans` has them for one.

    The start of a timeline never changes, so it is read once.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._timelines: dict[str, Timeline] = {}

    def to_ends(self, timelines: Sequence[str]) -> Iterator[list[TimelineSpan]]:
        for start in range(0, len(timelines), _PAGE):
            page = timelines[start : start + _PAGE]
            self._load_timelines(page)
            for timeline, head in zip(page, self._catalog.last_heads(page), strict=True):
                yield self._path_to(timeline, self._end(timeline, head))

    def _load_timelines(self, timelines: Sequence[str]) -> None:
        """Load the starts of these timelines and of all their parents."""
        wanted = {one for one in timelines if one not in self._timelines}
        while wanted:
            found = self._catalog.timelines(sorted(wanted))
            self._timelines.update((line.id, line) for line in found)
            wanted = {line.parent for line in found if line.parent} - self._timelines.keys()

    def _end(self, timeline: str, head: bytes) -> int:
        try:
            found = decode(EventHeader, head).seq if head else 0
        except Corrupt:  # reported when the event is read
            found = 0
        if not found:  # no events of its own, or removed
            self._timelines.pop(timeline, None)
            found = self._catalog.last_seq(timeline)
        return found

    def _path_to(self, timeline: str, upto: int) -> list[TimelineSpan]:
        found: list[TimelineSpan] = []
        while timeline:
            line = self._timelines.get(timeline) or self._catalog.timeline(timeline)
            if line is None:  # timeline of another host; its events are in segments
                break
            self._timelines[timeline] = line
            found.append(TimelineSpan(timeline, line.at, upto))
            timeline, upto = line.parent, line.at
        return found[::-1]


OPEN, ACTIVE, PAUSED, CLOSED, ARCHIVED = "open", "active", "paused", "closed", "archived"
LEGAL: dict[str, tuple[str, ...]] = {
    OPEN: (ACTIVE, PAUSED, CLOSED),
    ACTIVE: (ACTIVE, PAUSED, CLOSED),
    PAUSED: (ACTIVE, CLOSED, ARCHIVED),
    CLOSED: (ACTIVE, ARCHIVED),
    ARCHIVED: (PAUSED, CLOSED),
}
"""Legal status changes. Active to active: the holder died and another process takes over."""

_MAX_NAME_LENGTH = 4000
"""Highest length of an existing name. Names of nested forks exceed the limit for new names."""

_FIRST_PAGE, _PAGE_SIZE = 16, 1000
"""Number of fork names read at once: the first page, and further pages."""

SCRATCH_FILES = "room"
"""Value of `files` of a session without a directory whose machine has been used."""

PENDING_APPROVALS = "approval-asks"
"""Row kind by session id: a human may be asked for approval there; see actions/approvals.py."""

_AGENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}\Z")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]*(?:/[A-Za-z0-9][A-Za-z0-9._@+-]*)*\Z")


class _HasId(Protocol):
    @property
    def id(self) -> str: ...


class SessionRow(msgspec.Struct, frozen=True):
    """The catalog row of a session.

    It is stored as a map, so that later releases may add keys.

    Attributes:
        id: Id of the session.
        name: Name of the session.
        agent: Agent of the session.
        timeline: Id of its timeline.
        branch: Name of its branch.
        status: "open", "active", "paused", "closed" or "archived".
        created: When it was created, in ns since 1970.
        family: Id of the first session of all its forks.
        parent: Id of the session that it was forked from, or works for.
        sealed: Journal with which its timeline started: that of the commit where it was forked.
        path: Directory of its workspace.
        engine: Engine of its machine.
        files: "inplace", "private", "room" for private files without a directory, or "".
        profile: Name of its profile.
        limits: Limits of its live machine, as given.
        network: Network of its live machine, as given.
        beliefs: Shared facts that it sees: those of this Memory object, b"" none, None the newest.
        scopes: Shared scopes that it was opened with.
        host: Host of `path`.
        ledgers: Ledgers of its effects, see actions/ledger. Earlier releases wrote none.
        version: Version of the row. It is not stored.
    """

    id: str
    name: str
    agent: str
    timeline: str
    branch: str
    status: str
    created: int
    family: str
    parent: str = ""
    sealed: bytes = b""
    path: str = ""
    engine: str = "auto"
    files: str = ""
    profile: str = ""
    limits: dict[str, Any] | None = None
    network: str | None = None
    beliefs: bytes | None = None
    scopes: list[str] = []
    host: str = ""
    ledgers: list[str] = []
    version: int = 0

    @property
    def has_files(self) -> bool:
        """True if the session works in a directory or has used a scratch workspace."""
        return bool(self.path) or self.files == SCRATCH_FILES


class SessionTable:
    """The rows of all sessions."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._fork_counters: dict[str, int] = {}  # highest fork number seen, by session id
        self._paths = TimelinePaths(catalog)

    def get(self, id_: str) -> SessionRow:
        """Return a session by id. Raise NotFound("no_session") if there is none."""
        row = self._catalog.row("session", id_) if id_ else None
        if row is None:
            raise no_session(id_)
        return msgspec.structs.replace(decode(SessionRow, row.value), version=row.version)

    @contextmanager
    def reading(self, id_: str) -> Iterator[SessionRow]:
        """Yield the row. Raise NotFound("no_session") also if it is removed during the block."""
        row = self.get(id_)
        try:
            yield row
        except NotFound:
            self.get(id_)
            raise

    def has(self, id_: str) -> bool:
        """Return True if the session exists now. Other processes may remove it."""
        return self._catalog.row("session", id_) is not None

    def find(self, agent: str, name: str) -> SessionRow | None:
        """Return a session by agent and name, or None."""
        row = self._catalog.row(
            "session-name", _key(check_agent(agent), check_session(name, _MAX_NAME_LENGTH))
        )
        return self.get(row.value.decode()) if row else None

    def resolve(self, session: str | _HasId) -> str:
        """Return the id of a session given as an object, an id, a name or agent/name."""
        word = session if isinstance(session, str) else getattr(session, "id", None)
        if not isinstance(word, str):
            raise Invalid("bad_session", f"{session!r} is no session: give one, its name or its id")
        if _NAME.match(word) and self._catalog.row("session", word) is None:
            agent, _, rest = word.partition("/")
            for key in (_key("default", word), _key(agent, rest)):
                if row := self._catalog.row("session-name", key):
                    return row.value.decode()
        return word

    def all(self) -> list[SessionRow]:
        """Return all sessions, oldest first, forks of the same time by number."""
        found: list[SessionRow] = []
        after = ""
        while page := self._catalog.rows("session", after):
            for row in page:
                value = decode(SessionRow, row.value)
                found.append(msgspec.structs.replace(value, version=row.version))
            after = page[-1].key
        return sorted(found, key=lambda row: (row.created, len(row.name), row.name))

    def paths(self, rows: Sequence[SessionRow]) -> Iterator[tuple[SessionRow, list[TimelineSpan]]]:
        """Return the timeline spans of many sessions; see `EventLog.timeline_spans`."""
        return zip(rows, self._paths.to_ends([row.timeline for row in rows]), strict=True)

    def resolve_visible(self, word: str, sees: Callable[[str], bool]) -> SessionRow:
        """Return the session that a word means, among agents that `sees` allows.

        A name without an agent may also be that of the only visible session of this name.

        Raises:
            NotFound: "no_session" if there is none, or it is not visible.
            Conflict: "ambiguous" if several sessions have the name.
        """
        with suppress(NotFound):
            if sees((row := self.get(self.resolve(word))).agent):
                return row
        agent, _, rest = word.partition("/")
        if rest and sees(agent) and (theirs := self.find(agent, rest)) is not None:
            return theirs  # an invisible session may have the same text as its name
        found = [row for row in self.all() if row.name == word and sees(row.agent)]
        if len(found) > 1:
            named = ", ".join(f"{row.id} of {row.agent}" for row in found[:5])
            raise Conflict("ambiguous", f"{word!r} may be {named}: say which by its id")
        if not found:
            raise no_session(word)
        return found[0]

    @staticmethod
    def insert_changes(row: SessionRow) -> list[RowChange]:
        """Return the changes that create a session.

        Conflict("row_moved") if name or branch is taken.
        """
        id_ = row.id.encode()
        return [
            RowChange("session-name", _key(row.agent, row.name), id_, expect=0),
            RowChange("session-branch", row.branch, id_, expect=0),
            RowChange("session", row.id, _encode_row(row), expect=0),
        ]

    def find_by_branch(self, branch: str) -> SessionRow | None:
        """Return the session that commits to a branch, or None."""
        row = self._catalog.row("session-branch", branch)
        return self.get(row.value.decode()) if row else None

    @staticmethod
    def update_change(row: SessionRow) -> RowChange:
        return RowChange("session", row.id, _encode_row(row))

    @staticmethod
    def move_changes(old: SessionRow, new: SessionRow) -> list[RowChange]:
        """Return the changes that move a session to another timeline.

        The old timeline is recorded, so that an erasure of the session finds its events.
        """
        return [
            SessionTable.update_change(new),
            RowChange(_former_timelines_kind(old.id), old.timeline, b""),
        ]

    def former_timelines(self, id_: str) -> set[str]:
        """Return the timelines that a session has left by a restore."""
        found: list[str] = []
        while page := self._catalog.rows(_former_timelines_kind(id_), found[-1] if found else ""):
            found += [row.key for row in page]
        return set(found)

    def delete_changes(self, row: SessionRow) -> list[RowChange]:
        """Return the row changes that remove a session."""
        return [
            *(
                RowChange(_former_timelines_kind(row.id), timeline, None)
                for timeline in self.former_timelines(row.id)
            ),
            RowChange("told", row.id, None),
            RowChange(PENDING_APPROVALS, row.id, None),
            RowChange("session-name", _key(row.agent, row.name), None),
            RowChange("session-branch", row.branch, None),
            RowChange("session", row.id, None),
        ]

    def is_taken(self, agent: str, name: str) -> bool:
        """Return True if the agent has a session of this name."""
        return self._catalog.row("session-name", _key(agent, name)) is not None

    def free_forks(self, row: SessionRow, n: int, *, refresh: bool = False) -> list[str]:
        """Return names for forks: NAME/1, NAME/2, ... after the highest in use.

        The highest number is cached. If another process has taken a name, the insert fails with
        Conflict; then call again with `refresh`.
        """
        if refresh or row.id not in self._fork_counters:
            self._fork_counters[row.id] = self._last_fork(row)
        last = self._fork_counters[row.id]
        self._fork_counters[row.id] = last + n
        return [f"{row.name}/{number}" for number in range(last + 1, last + 1 + n)]

    def _last_fork(self, row: SessionRow) -> int:
        prefix = _key(row.agent, row.name) + "/"
        last, after, limit = (
            0,
            prefix,
            _FIRST_PAGE,
        )  # most sessions have no forks, so the first page is small
        while page := self._catalog.rows("session-name", after, limit):
            for found in page:
                rest = found.key.removeprefix(prefix)
                if not found.key.startswith(prefix):
                    break
                if rest.isdigit():
                    last = max(last, int(rest))
            if not page[-1].key.startswith(prefix):
                break
            after, limit = page[-1].key, _PAGE_SIZE
        return last


def no_session(word: str) -> NotFound:
    """Return one error for both a missing session and one that the caller may not see."""
    return NotFound("no_session", f"there is no session {word!r}: `ortet session ls` lists them")


def _former_timelines_kind(id_: str) -> str:
    return f"left/{id_}"


def check_move(name: str, old: str, new: str) -> None:
    """Raise Conflict unless the status may change in this way."""
    if new not in LEGAL[old]:
        ways = " or ".join(LEGAL[old])
        raise Conflict(
            "illegal_move",
            f"session {name!r} is {old} and cannot become {new}: from here it can be {ways}",
            status=old,
        )


def check_session(name: str, longest: int = 200) -> str:
    if isinstance(name, str) and len(name) <= longest and _NAME.match(name):
        return name
    raise Invalid(
        "bad_name",
        f"{str(name)[:100]!r} cannot name a session: use letters, digits and . _ @ + - in parts "
        "joined by slashes",
    )


def check_agent(agent: str) -> str:
    if isinstance(agent, str) and _AGENT.match(agent):
        return agent
    raise Invalid(
        "bad_name", f"{str(agent)[:100]!r} cannot name an agent: use letters, digits and . _ @ + -"
    )


def _key(agent: str, name: str) -> str:
    return f"{agent}/{name}"


def _encode_row(row: SessionRow) -> bytes:
    return encode(msgspec.structs.replace(row, version=0))


# Last activity of sessions, computed for many at once from catalog rows.

_SINGLE_LOOKUP_LIMIT = 200
"""Number of branches up to which each is looked up singly. For more, all heads are read."""


def last_active(catalog: Catalog, rows: Sequence[SessionRow]) -> dict[str, int]:
    """Return by session id the latest of its creation, last event and last branch move."""
    moved = dict(_branch_move_times(catalog, [row.branch for row in rows]))
    heads = catalog.last_heads([row.timeline for row in rows])
    return {
        row.id: max(row.created, _time(head), moved.get(row.branch, 0))
        for row, head in zip(rows, heads, strict=True)
    }


def _time(head: bytes) -> int:
    try:
        return header_time(head)
    except Corrupt:  # `verify` reports damage; the listing must still work
        return 0


def _branch_move_times(catalog: Catalog, branches: Sequence[str]) -> Iterator[tuple[str, int]]:
    if len(branches) <= _SINGLE_LOOKUP_LIMIT:
        for branch in branches:
            if (head := catalog.head(f"branch:{branch}")) is not None:
                yield branch, head.time
        return
    after = ""
    while page := catalog.heads("branch:", after):
        yield from ((head.name.removeprefix("branch:"), head.time) for head in page)
        after = page[-1].name
