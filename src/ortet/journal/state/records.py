"""Records of a session state, and functions that make them from events.

Each record holds the number of the event that made it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from ortet._util.structs import thread_safe_struct
from ortet.journal.events import Event


class Message(msgspec.Struct, frozen=True):
    """One message of a conversation.

    Attributes:
        seq: Number of its event.
        role: "user", "assistant", "system", "tool" or another role.
        content: What was said: a text, or the list of parts that a model API takes.
        time: When it was said, in ns since 1970.
        extra: Further fields, such as `tool_calls` and `tool_call_id`.
    """

    seq: int
    role: str
    content: Any
    time: int = 0
    extra: dict[str, Any] = {}


class StateRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base class of table records. Stored as maps, so that later releases can add fields."""


class NoteRecord(StateRecord, frozen=True):
    """A note of the agent. `expires` is in ns since 1970, or 0 for never."""

    key: str
    value: Any
    expires: int = 0
    seq: int = 0


class SourceEventRef(StateRecord, frozen=True):
    """Reference to the event that something was learned from. `session` is a session id."""

    timeline: str = ""
    seq: int = 0
    session: str = ""


class Fact(StateRecord, frozen=True):
    """A fact. All times are in ns since 1970.

    Attributes:
        id: Id of the fact.
        text: The text.
        about: The subject.
        lesson: True if it was learned from a failure.
        seq: Number of its event.
        time: Since when it is known.
        scope: Who knows it: "" for this session, or "agent", "user:NAME", "project:NAME".
        confidence: From 0 to 1.
        since: Since when it is valid; 0 means no limit.
        until: Until when it is valid; 0 means no limit.
        source: The event that it was learned from.
        supersedes: Id of the fact that it replaces.
        like: Id of a similar fact.
        ended: When it was retracted or replaced; 0 means that it is believed.
        ended_by: Id of the fact that replaced it.
        why: The reason of its end.
    """

    id: str
    text: str
    about: str = ""
    lesson: bool = False
    seq: int = 0
    time: int = 0
    scope: str = ""
    confidence: float = 1.0
    since: int = 0
    until: int = 0
    source: SourceEventRef | None = None
    supersedes: str = ""
    like: str = ""
    ended: int = 0
    ended_by: str = ""
    why: str = ""


class Episode(StateRecord, frozen=True):
    """A summary of a range of events. All times are in ns since 1970.

    Attributes:
        id: Id of the episode.
        summary: The summary.
        outcome: How it ended.
        first: Number of the first event.
        last: Number of the last event.
        participants: Who took part.
        importance: From 0 to 1.
        cause: Why it was written: "closed", "compacted", "milestone" or "merged".
        seq: Number of the event of the episode itself.
        time: When the last event was written.
        began: When the first event was written.
        session: Name of the session.
        source: The original event, if the episode comes from a shared memory.
    """

    id: str
    summary: str
    outcome: str = ""
    first: int = 0
    last: int = 0
    participants: list[str] = []
    importance: float = 0.5
    cause: str = ""
    seq: int = 0
    time: int = 0
    began: int = 0
    session: str = ""
    source: SourceEventRef | None = None


class Decision(StateRecord, frozen=True):
    """A decision, with its reason and the alternatives that were rejected.

    Attributes:
        id: Id of the decision.
        text: The decision.
        why: The reason.
        instead_of: The alternatives.
        seq: Number of its event.
        time: When it was recorded, in ns since 1970.
    """

    id: str
    text: str
    why: str = ""
    instead_of: list[str] = []
    seq: int = 0
    time: int = 0


class Question(StateRecord, frozen=True):
    """A question of the agent.

    Attributes:
        id: Id of the question.
        text: The question.
        answer: The answer.
        answered: True if there is an answer.
        seq: Number of its event.
    """

    id: str
    text: str
    answer: Any = None
    answered: bool = False
    seq: int = 0


class Artifact(StateRecord, frozen=True):
    """One version of a named artifact.

    Attributes:
        name: Name of the artifact.
        version: Number of the version, from 1.
        oid: Id of its content, in hex.
        size: Size of the content in bytes.
        kind: What it is, for example "report".
        media: Media type.
        link: Where the content is, if it is not stored.
        action: Id of the action that made it.
        why: Reason for it.
        seq: Number of its event.
        time: When it was stored, in ns since 1970.
    """

    name: str
    version: int
    oid: str
    size: int
    kind: str = ""
    media: str = ""
    link: str = ""
    action: str = ""
    why: str = ""
    seq: int = 0
    time: int = 0


class Effect(StateRecord, frozen=True):
    """An action and its effect outside the session.

    It is stored in the rows of the family, not in the session state.

    Attributes:
        id: Id of the action.
        name: Name of the action.
        replay: "pure", "recorded", "idempotent" or "once".
        state: "begun", "done", "failed" or "unsettled".
        key: Idempotency key.
        scope: Scope of the key: "family" or "timeline".
        why: The reason.
        digest: Digest of name and arguments.
        begun: Number of the event of its intent.
        ended: Number of the event of its outcome, or 0.
        time: When it began, in ns since 1970.
        actor: Who did it.
        command: The command line, if `name` does not show it.
        where: "outside", or "workspace" if only files of the workspace changed, which a restore
            undoes.
    """

    id: str
    name: str
    replay: str
    state: str
    key: str = ""
    scope: str = ""
    why: str = ""
    digest: str = ""
    begun: int = 0
    ended: int = 0
    time: int = 0
    actor: str = ""
    command: str = ""
    where: str = "outside"


class ToolCall(StateRecord, frozen=True):
    """A tool call of the model. `part` means that it was a part of the message content."""

    id: str
    name: str = ""
    part: bool = False


class Approval(StateRecord, frozen=True):
    """A request for approval by a person.

    Attributes:
        id: Id of the request.
        what: What is to be approved.
        why: Reason for the request.
        state: "asked", "given" or "denied".
        by: Who answered.
        because: Reason for the answer.
        digest: Digest of the call that waits for the answer.
        used: Id of the action that used the approval.
        seq: Number of its event.
        time: When it was asked, in ns since 1970.
        answered: When it was answered, in ns since 1970.
        waiting: True if the answer is in the inbox and not in the journal yet.
    """

    id: str
    what: str
    why: str = ""
    state: str = "asked"
    by: str = ""
    because: str = ""
    digest: str = ""
    used: str = ""
    seq: int = 0
    time: int = 0
    answered: int = 0
    waiting: bool = False


class CoreState(StateRecord, frozen=True):
    """The small part of a session state, stored as a whole at each commit."""

    goal: str = ""
    status: str = "open"
    plan: list[str] = []
    step: int = 0
    limits: dict[str, float] = {}
    soft: dict[str, float] = {}
    spent: dict[str, float] = {}
    since: int = 0  # messages after this event are in the context
    summary: int = 0  # number of the compaction that replaces the messages before
    # (first, last) event numbers of superseded messages, in order
    aside: list[tuple[int, int]] = []
    events: int = 0
    calling: list[ToolCall] = []  # calls of the last assistant message without a result
    environment: dict[str, int] = {}  # part of the environment -> event that recorded it last
    # part of the environment -> event that recorded it first
    environment_first: dict[str, int] = {}
    secrets: dict[str, int] = {}  # secret name -> last event of a command that used it
    shared: dict[str, int] = {}  # scope -> last event that the scope shares
    # Start of the hash of the last event. It makes the folds of different events different objects,
    # so that the replacement of one after an erasure never stands for the other.
    last: bytes = b""


def message_of(event: Event) -> Message:
    """Return the message that an event records."""
    data = event.data
    return Message(
        seq=event.seq,
        role=data.get("role", ""),
        content=data.get("content"),
        time=event.time,
        extra=data.get("extra", {}),
    )


def fact_of(event: Event) -> Fact:
    """Return the fact that an event records."""
    data = event.data
    return Fact(
        id=data["id"],
        text=data["text"],
        about=data.get("about", ""),
        lesson=event.kind == "lesson",
        seq=event.seq,
        time=event.time,
        scope=data.get("scope", ""),
        confidence=data.get("confidence", 1.0),
        since=data.get("since", 0),
        until=data.get("until", 0),
        source=_source_of(data),
        supersedes=data.get("supersedes", ""),
        like=data.get("like", ""),
    )


def _source_of(data: dict[str, Any]) -> SourceEventRef | None:
    source = data.get("source")
    return msgspec.convert(source, thread_safe_struct(SourceEventRef)) if source else None


def episode_of(event: Event) -> Episode:
    """Return the episode that an event records."""
    data = event.data
    return Episode(
        id=data["id"],
        summary=data["summary"],
        outcome=data.get("outcome", ""),
        first=data.get("first", 0),
        last=data.get("last", 0),
        participants=data.get("participants", []),
        importance=data.get("importance", 0.5),
        cause=data.get("cause", ""),
        seq=event.seq,
        time=data.get("time", event.time),
        began=data.get("began", 0),
        session=data.get("session", ""),
        source=_source_of(data),
    )


def answer_approval(approval: Approval, event: Event) -> Approval:
    """Return an approval after an answer. The first answer counts."""
    if approval.state != "asked":
        return approval
    data = event.data
    return msgspec.structs.replace(
        approval,
        state="given" if data.get("ok") else "denied",
        by=event.actor,
        because=data.get("why", ""),
        answered=event.time,
    )


# External state of a session: collaborations, rate limits, tokens and a browser.
#
# Secrets are named here and never stored. `kinds.external_state` has the events that make these
# records.


DRAFT, DONE, WITHDRAWN = "draft", "done", "withdrawn"
_FIELDS = ("kind", "link", "status", "text", "effect")


class Collaboration(StateRecord, frozen=True):
    """Something that others see or will see: a branch, a pull request, a draft comment.

    Attributes:
        name: Name of the collaboration.
        kind: What it is, for example "pull_request".
        link: Address of it.
        status: "draft", "done" or "withdrawn".
        text: Its text.
        effect: Id of the action that made it.
        seq: Number of its event.
        time: When it was recorded, in ns since 1970.
    """

    name: str
    kind: str = ""
    link: str = ""
    status: str = DRAFT
    text: str = ""
    effect: str = ""
    seq: int = 0
    time: int = 0


class RateLimitWindow(StateRecord, frozen=True):
    """Rate limit of a service.

    Attributes:
        service: Name of the service.
        remaining: Calls that remain until `reset`, or None if the number is unknown.
        reset: When the limit is reset, in ns since 1970.
        limit: Calls that the service accepts after a reset, or None if the number is unknown.
        full: True if the reset time has passed, so that `limit` calls are accepted again.
        seq: Number of its event.
        time: When it was recorded, in ns since 1970.
    """

    service: str
    remaining: float | None = None
    reset: int = 0
    limit: float | None = None
    full: bool = False
    seq: int = 0
    time: int = 0


class ServiceToken(StateRecord, frozen=True):
    """Name of the vault entry with the credentials of a service.

    Attributes:
        service: Name of the service.
        vault: Name of the vault entry.
        seq: Number of its event.
        time: When it was recorded, in ns since 1970.
    """

    service: str
    vault: str
    seq: int = 0
    time: int = 0


class BrowserState(StateRecord, frozen=True):
    """Pages that a browser had open.

    `storage` is the vault entry with its cookies and local storage, or "".
    """

    urls: list[str] = []
    storage: str = ""
    seq: int = 0
    time: int = 0


BROWSER = "browser"
"""The only key of the browser table."""


def update_collaboration(
    old: Collaboration | None, data: dict[str, Any], seq: int, time: int
) -> Collaboration:
    """Return the record after an event. Fields that the event does not have stay."""
    changes = {field: data[field] for field in _FIELDS if field in data}
    collaboration = old or Collaboration(data["name"])
    return msgspec.structs.replace(collaboration, **changes, seq=seq, time=time)


def external_state_events(
    collaborations: Iterable[Collaboration],
    windows: Iterable[RateLimitWindow],
    tokens: Iterable[ServiceToken],
) -> list[tuple[str, dict[str, Any]]]:
    """Return the events that give another session the same external state."""
    events: list[tuple[str, dict[str, Any]]] = []
    for collaboration in collaborations:
        fields = {field: getattr(collaboration, field) for field in ("name", *_FIELDS)}
        events.append(("collaboration", {key: value for key, value in fields.items() if value}))
    for window in windows:
        data = {"service": window.service, "remaining": window.remaining, "reset": window.reset}
        events.append(("window", data if window.limit is None else {**data, "limit": window.limit}))
    events += [("token", {"service": token.service, "vault": token.vault}) for token in tokens]
    return events
