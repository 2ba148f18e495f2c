"""What a mind holds, each made by an event and named by its number."""

from __future__ import annotations

from typing import Any

import msgspec


class Message(msgspec.Struct, frozen=True):
    """`content` is what was said: a str, or the list of parts a model API takes."""

    seq: int
    role: str
    content: Any
    time: int = 0
    extra: dict[str, Any] = {}


class StateRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of what maps keep: as maps on disk, so that later releases may add keys."""


class NoteRecord(StateRecord, frozen=True):
    """Scratch. `expires` is in ns since 1970, 0 for never."""

    key: str
    value: Any
    expires: int = 0
    seq: int = 0


class SourceEventRef(StateRecord, frozen=True):
    """The event that something was learned from. `session`: the id of whose it is."""

    timeline: str = ""
    seq: int = 0
    session: str = ""


class Fact(StateRecord, frozen=True):
    """What is known, since `time`. A lesson is one that a failure taught.

    `scope` is who knows it: "" this session, else "agent", "user:…" or "project:…". `since` and
    `until` say when it holds, in ns, 0 for always; `ended`, when it was given up: for the fact
    `ended_by`, or because of `why`. `like` is one that says nearly the same.
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
    """What happened from event `first` to event `last`, which began at `began` and ended at `time`.

    `cause` says why it was written: closed, compacted, milestone, merged. `source` is where it was
    told first, when this is told by a shared memory.
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
    session: str = ""  # its name
    source: SourceEventRef | None = None


class Decision(StateRecord, frozen=True):
    id: str
    text: str
    why: str = ""
    instead_of: list[str] = []
    seq: int = 0
    time: int = 0


class Question(StateRecord, frozen=True):
    id: str
    text: str
    answer: Any = None
    answered: bool = False
    seq: int = 0


class Artifact(StateRecord, frozen=True):
    """One version of a named thing that was made. `oid` is its content, in hex."""

    name: str
    version: int
    oid: str
    size: int
    kind: str = ""
    media: str = ""
    link: str = ""
    action: str = ""  # id of the action that made it
    why: str = ""
    seq: int = 0
    time: int = 0


class Effect(StateRecord, frozen=True):
    """An action and its external deed. `state`: begun, done, failed, unsettled. `command`: what was
    run, where its name does not tell; the family's rows know it, a mind does not keep it."""

    id: str
    name: str
    replay: str
    state: str
    key: str = ""
    scope: str = ""
    why: str = ""
    digest: str = ""
    begun: int = 0  # seq
    ended: int = 0
    time: int = 0
    actor: str = ""
    command: str = ""


class ToolCall(StateRecord, frozen=True):
    """A tool call of the model. `part`: it was made by a part of the message's content."""

    id: str
    name: str = ""
    part: bool = False


class Approval(StateRecord, frozen=True):
    """What a human was asked to allow. `state`: asked, given, denied; `used`: by which action.

    `waiting`: the answer is there, and the writer has not taken it into the journal yet.
    """

    id: str
    what: str
    why: str = ""
    state: str = "asked"
    by: str = ""
    because: str = ""
    digest: str = ""  # of the call that waits for it
    used: str = ""
    seq: int = 0
    time: int = 0
    answered: int = 0
    waiting: bool = False


class CoreState(StateRecord, frozen=True):
    """The small part of a mind, stored whole at each commit."""

    goal: str = ""
    status: str = "open"
    plan: list[str] = []
    step: int = 0
    limits: dict[str, float] = {}
    soft: dict[str, float] = {}
    spent: dict[str, float] = {}
    since: int = 0  # messages behind this event are in context
    summary: int = 0  # the compaction that stands for those before
    aside: list[tuple[int, int]] = []  # first and last events of what is set aside, in order
    events: int = 0
    calling: list[ToolCall] = []  # of the last assistant message, without a result yet
    environment: dict[str, int] = {}  # part of the environment -> the event that told it last
    environment_first: dict[str, int] = {}  # the same of the first that did
    secrets: dict[str, int] = {}  # name of each that a command was given -> the last such event
    shared: dict[str, int] = {}  # scope -> the last event that others may know of
    last: bytes = b""  # of the hash of the last event: minds of other events are other folds,
    # so that what stands for one of them after an erasure does not stand for the other
