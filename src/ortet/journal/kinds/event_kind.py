"""The record that describes one event kind, and the default functions of its fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from ortet._util.codec import to_json
from ortet.journal.conversation.text import one_line
from ortet.journal.events import Event
from ortet.journal.state.records import (
    Artifact,
    Collaboration,
    Effect,
    Fact,
    Message,
    Question,
    RateLimitWindow,
    ServiceToken,
)
from ortet.journal.state.state import SessionState

EventData = dict[str, Any]

Reducer = Callable[[SessionState, Event, EventData], None]
"""Function that changes a state by an event, which is given with its data."""

EventGroup = Literal["said", "reasoning", "done", "known", "money", "other"]
"""Filter of the journal page that selects the kind."""

ReplayRole = Literal["step", "matched", "skipped", "never_requested"]
"""How a replay treats the kind.

- `step`: a replayed program must produce the event again.
- `matched`: a program may leave the event out. If it produces one, it must match the record.
- `skipped`: a program may produce the event or not, and none has to match the record.
- `never_requested`: skipped, and no verb of a program produces the event.
"""

_LINE_FIELDS = ("text", "name", "step", "amounts", "limits", "id")
_SHORT_CHARS = 200


def default_line(data: EventData) -> str:
    """Return the first field of event data that says most to a reader, or ""."""
    return next((str(data[field]) for field in _LINE_FIELDS if field in data), "")


def custom_line(data: EventData) -> str:
    """Return a line for data of a program: its text or name if there is one, otherwise JSON."""
    if any(field in data for field in _LINE_FIELDS):
        return default_line(data)
    return to_json(data) if data else ""


def text_field(data: EventData) -> str:
    """Return the field `text` of event data."""
    return str(data.get("text", ""))


def no_text(data: EventData) -> str:
    """Return "": the kind has no line here."""
    del data
    return ""


def always(data: Mapping[str, Any]) -> bool:
    """Return True for any data."""
    del data
    return True


def never(data: Mapping[str, Any]) -> bool:
    """Return False for any data."""
    del data
    return False


def progress_text(text: str) -> str:
    """Cut a text to the length that the progress log shows."""
    return one_line(text, _SHORT_CHARS)


def short_id(data: EventData) -> str:
    """Return the last digits of an id. The first digits are a time and often equal."""
    return str(data.get("id", ""))[-8:]


class ReasonText(NamedTuple):
    """How a comparison of two sessions shows the kind among the reasons of the agent."""

    label: str
    text: Callable[[EventData], str]


class BriefingSectionSpec(msgspec.Struct, frozen=True):
    """A section of a briefing.

    `position` orders the sections. `select` returns the records, oldest first. `describe` returns
    the line of a record, and the record as data. `weight` is the worth of the newest record; older
    records are worth less, unless `worth` returns the worth of each record.
    """

    position: int
    key: str
    title: str
    weight: float
    select: Callable[[BriefingItems], Sequence[Any]]
    describe: Callable[[Any], tuple[str, Any]]
    worth: Callable[[Any], float] | None = None


class EventKind(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the program has to know about an event kind.

    Stored and checked:

    - `name` is the stored string.
    - `schema` has the types of data fields that readers rely on. None: any data.
    - `reducer` changes the session state. None: the event does not change it.
    - `shareable`: `scope` in the data says with whom the event is shared.
    - `seq_fields` are data fields that hold the number of an earlier event.

    History:

    - `survives_rewind`: the event stays when a message before it is removed.
    - `bookkeeping` says whether the event alone is no reason for a commit.
    - `milestone`: the event makes a commit due in sessions that commit at milestones.
    - `ends_wait` says whether the event ends a wait for a person. That time is no work.
    - `replay` is the role of the event in a replay.
    - `measured`: the `amounts` of the data are measurements, which differ between runs.
    - `compared`: a comparison of two runs includes the event.
    - `automatic`: the session may write the event on its own, between two calls of a program.
    - `from_others`: somebody else than the session writes the event, through its inbox.

    Memory and retention:

    - `indexed`: recall finds the event by its `words`, the exact text that it records.
    - `in_episodes`: an episode summarises the event. `importance` is added to that of the episode.
    - `quotes_messages`: the text may quote messages of events `first` to `last` of the data.
    - `expires_as_message`: retention rules for messages apply.
    - `only_amounts`: the event holds amounts only and stays when a session is erased.

    Shown:

    - `line` is the text of the event in a journal listing and in an audit.
    - `listed`: an agent that lists its journal sees the event without asking for the kind.
    - `group` is the filter of the journal page.
    - `progress` is the line in the progress log, or "".
    - `reason` is set if the event is a reason of the agent.
    - `briefing` are the sections of a briefing that show what the events recorded.
    """

    name: str
    schema: type[msgspec.Struct] | None = None
    reducer: Reducer | None = None
    shareable: bool = False
    seq_fields: tuple[str, ...] = ()

    survives_rewind: bool = False
    bookkeeping: Callable[[EventData], bool] = never
    milestone: bool = False
    ends_wait: Callable[[Mapping[str, Any]], bool] = never
    replay: ReplayRole = "step"
    measured: bool = False
    compared: bool = True
    automatic: bool = False
    from_others: bool = False

    indexed: bool = False
    words: Callable[[EventData], str] = text_field
    in_episodes: bool = True
    importance: float = 0.0
    quotes_messages: bool = False
    expires_as_message: bool = False
    only_amounts: bool = False

    line: Callable[[EventData], str] = default_line
    listed: bool = True
    group: EventGroup = "other"
    progress: Callable[[EventData], str] = no_text
    reason: ReasonText | None = None
    briefing: tuple[BriefingSectionSpec, ...] = ()


CUSTOM_KIND = EventKind(name="", survives_rewind=True, replay="matched", line=custom_line)
"""Record of every kind with a dot in its name. Programs define such kinds."""

UNKNOWN_KIND = EventKind(name="", replay="matched")
"""Record of every kind that only a later release knows."""


# What a briefing can show, before lines are made and chosen. The kinds say how it is shown.

LONG_CHARS, SHORT_CHARS = 400, 160
"""Largest length of a main text, and of a text beside it, in a line of a briefing."""


class FailedAction(msgspec.Struct, frozen=True):
    """A failed action with its error."""

    effect: Effect
    error: str = ""


class PendingApproval(msgspec.Struct, frozen=True):
    """An approval request without an answer."""

    id: str
    what: str
    why: str = ""


class BriefingItems(msgspec.Struct, frozen=True, kw_only=True):
    """All items that a briefing can show: the state, and what is not in the state alone.

    Lists are in the order of events.
    """

    name: str
    status: str
    state: SessionState
    done: Sequence[Effect] = ()
    failed: Sequence[FailedAction] = ()
    lessons: Sequence[Fact] = ()
    questions: Sequence[Question] = ()
    artifacts: Sequence[Artifact] = ()
    unsettled: Sequence[Effect] = ()
    elsewhere: Sequence[Effect] = ()  # done by the family, and not on this timeline
    approvals: Sequence[PendingApproval] = ()
    limits: dict[str, float] = {}
    left: dict[str, float] = {}
    spent: dict[str, float] = {}
    facts: Sequence[Fact] = ()
    notes: dict[str, Any] = {}
    summary: str = ""
    messages: Sequence[Message] = ()
    collaborations: Sequence[Collaboration] = ()
    windows: Sequence[RateLimitWindow] = ()
    tokens: Sequence[ServiceToken] = ()
    # lines and data about the environment of the workspace
    environment: Sequence[tuple[str, Any]] = ()
