"""AgentCheckpoint: the state of an agent as one portable JSON record.

The schema is published as docs/agent-checkpoint.schema.json. It contains the docstrings of the
records as descriptions. Fields are only added, never removed.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, cast, get_args, get_type_hints

import msgspec
from msgspec import Meta

from ortet._util.codec import Hasher, encode, to_json
from ortet._util.structs import describe_properties, thread_safe_struct
from ortet.errors import Invalid, Unsupported
from ortet.journal.state.records import (
    DONE,
    DRAFT,
    WITHDRAWN,
    Approval,
    Artifact,
    Collaboration,
    Decision,
    Effect,
    Fact,
    Question,
    RateLimitWindow,
    ServiceToken,
)

VERSION = 1
SCHEMA_ID = f"urn:ortet:agent-checkpoint:{VERSION}"

Amount = Annotated[float, Meta(ge=0)]
Index = Annotated[int, Meta(ge=0)]
_FIELD = re.compile(r"required field `([^`]+)`")
_AT = re.compile(r" - at `(?:key in )?(\$[^`]*)`")
_ANY_KEY = "[...]"
_MAX_RESET_NS = 10**20
_LATER_FIELDS = ("collaborations", "windows", "tokens", "expires", "approvals")
"""Fields that a later release added."""

_PART = re.compile(r"\.[^.\[]+|\[[^\]]*\]")


class CheckpointMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message. `content` is text, or the list of parts that a model API takes."""

    role: Annotated[str, Meta(min_length=1)]
    content: Any
    time: int = 0
    extra: dict[str, Any] = {}


class CompletedEffect(msgspec.Struct, frozen=True):
    """An effect that was completed under a key, with its outcome. It is not executed again."""

    effect: Effect
    outcome: Any = None


class ResumePoint(msgspec.Struct, frozen=True):
    """Where to continue: last commit, last event, current step, and effects to be careful with."""

    commit: str
    event: Index
    step: Index
    unsettled: list[Effect]
    done: list[CompletedEffect] = []


class CheckpointBudget(msgspec.Struct, frozen=True):
    """Spending limits and spent amounts, by counter."""

    limits: dict[str, Amount] = {}
    soft: dict[str, Amount] = {}
    spent: dict[str, Amount] = {}


class AgentCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One agent at one moment, as a portable record.

    Attributes:
        version: Version of the record.
        session_id: Id of the session.
        timestamp: When the record was made.
        goal: Goal of the session.
        plan: Steps of the plan.
        current_step: Number of the current step, from 0.
        context: Notes by key.
        messages: Messages that are in context, in order.
        artifacts: All versions of all artifacts.
        resume_point: Where to continue.
        facts: Believed facts and lessons.
        decisions: Decisions.
        budget: Limits and spent amounts.
        questions: Open questions.
        summary: Summary of the messages that compactions left out.
        name: Name of the session.
        agent: Name of the agent.
        digest: Digest of all other fields, or "". It detects damage and is not a signature.
        collaborations: Branches, pull requests and the like.
        windows: Rate limits of services.
        tokens: Names of the vault entries of services.
        expires: When each note expires, in ns since 1970.
        approvals: Approval requests without an answer. Answered ones are left out, because anybody
            can write this record and it must not grant anything.
    """

    version: Annotated[int, Meta(ge=1)] = VERSION
    session_id: Annotated[str, Meta(min_length=1)]
    timestamp: Annotated[datetime, Meta(tz=True)]
    goal: str
    plan: list[str]
    current_step: Index
    context: dict[str, Any]
    messages: list[CheckpointMessage]
    artifacts: list[Artifact]
    resume_point: ResumePoint
    facts: list[Fact]
    decisions: list[Decision]
    budget: CheckpointBudget
    questions: list[Question] = []
    summary: str = ""
    name: str = ""
    agent: str = ""
    digest: str = ""
    collaborations: list[Collaboration] = []
    windows: list[RateLimitWindow] = []
    tokens: list[ServiceToken] = []
    expires: dict[str, Index] = {}
    approvals: list[Approval] = []

    def to_json(self) -> str:
        """Return the checkpoint as JSON, with its digest."""
        whole = msgspec.structs.replace(self, digest=_digest(self))
        return msgspec.json.encode(whole, order="deterministic").decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> AgentCheckpoint:
        """Read a checkpoint from JSON and check it.

        Raises:
            Invalid: kind "bad_checkpoint". `details["path"]` is the wrong field.
            Unsupported: kind "newer_checkpoint", if a later release made it.
        """
        try:
            plain = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise _bad("$", str(error)) from error
        version = plain.get("version") if isinstance(plain, dict) else None
        if isinstance(version, int) and version > VERSION:
            raise Unsupported(
                "newer_checkpoint",
                f"this checkpoint is of format {version}, known here is {VERSION}: upgrade ortet",
            )
        try:
            checkpoint = _read(plain)
        except msgspec.ValidationError as error:
            raise _bad(_path(plain, error), str(error).partition(" - at ")[0]) from error
        if checkpoint.digest and checkpoint.digest != _digest(checkpoint):
            raise _bad("$.digest", "the record is not the one it was made of")
        return check_checkpoint(msgspec.structs.replace(checkpoint, digest=""))


def _read(plain: Any) -> AgentCheckpoint:
    try:
        return msgspec.convert(plain, thread_safe_struct(AgentCheckpoint))
    except msgspec.ValidationError as error:
        try:  # in JSON and JSON Schema, 1.0 is an integer
            return msgspec.convert(_normalise_numbers(plain), thread_safe_struct(AgentCheckpoint))
        except msgspec.ValidationError:
            raise error from None


def check_checkpoint(checkpoint: AgentCheckpoint) -> AgentCheckpoint:
    """Check the rules that types do not express. Raise Invalid("bad_checkpoint")."""
    if checkpoint.current_step > len(checkpoint.plan):
        raise _bad("$.current_step", f"the plan has {len(checkpoint.plan)} steps")
    for number, artifact in enumerate(checkpoint.artifacts):
        if not re.fullmatch(r"(?:[0-9a-f]{64})?", artifact.oid):
            raise _bad(f"$.artifacts[{number}].oid", "64 hexadecimal digits were expected")
    for number, collaboration in enumerate(checkpoint.collaborations):
        if not collaboration.name or collaboration.status not in (DRAFT, DONE, WITHDRAWN):
            raise _bad(f"$.collaborations[{number}]", "a name, and draft, done or withdrawn")
    for number, window in enumerate(checkpoint.windows):
        if not window.service or window.remaining is None or not 0 <= window.reset < _MAX_RESET_NS:
            raise _bad(f"$.windows[{number}]", "a service, what remains, and until when")
    seen_ids: set[str] = set()
    point = checkpoint.resume_point
    effects = [(f"unsettled[{n}]", effect) for n, effect in enumerate(point.unsettled)]
    effects += [(f"done[{n}].effect", done.effect) for n, done in enumerate(point.done)]
    for place, effect in effects:
        path = f"$.resume_point.{place}"
        if not effect.id or effect.id in seen_ids:
            raise _bad(f"{path}.id", "each effect has an id of its own")
        if effect.key and (scoped_key := f"{effect.scope}/{effect.key}") in seen_ids:
            raise _bad(f"{path}.key", "each effect has a key of its own")
        seen_ids |= {effect.id, scoped_key} if effect.key else {effect.id}
    for number, approval in enumerate(checkpoint.approvals):
        path = f"$.approvals[{number}]"
        if not approval.id or approval.id in seen_ids:
            raise _bad(f"{path}.id", "each approval has an id of its own")
        if approval.state != "asked":
            raise _bad(f"{path}.state", "only what was asked can be told")
        seen_ids.add(approval.id)
    return checkpoint


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a checkpoint, as it is published."""
    (ref,), parts = msgspec.json.schema_components([AgentCheckpoint], ref_template="#/$defs/{name}")
    for part in parts.values():
        describe_properties(part)
        if "description" in part:  # Python releases indent docstrings differently
            part["description"] = " ".join(part["description"].split())
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        **ref,
        "$defs": parts,
    }


def _digest(checkpoint: AgentCheckpoint) -> str:
    """Return the digest of a checkpoint.

    It does not depend on how numbers are written: 5 and 5.0 are equal in JSON.
    """
    plain = msgspec.to_builtins(msgspec.structs.replace(checkpoint, digest=""))
    for name in _LATER_FIELDS:  # digests of earlier releases do not cover these fields
        if not plain[name]:
            del plain[name]
    try:
        return Hasher().oid(encode(_normalise_numbers(plain))).hex()
    except Invalid as error:
        raise _bad("$", str(error)) from error


def _normalise_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1 << 53:
        return int(value)
    if isinstance(value, list):
        return [_normalise_numbers(item) for item in value]
    if isinstance(value, dict):
        return {key: _normalise_numbers(item) for key, item in value.items()}
    return value


def _path(plain: Any, error: msgspec.ValidationError) -> str:
    """Return the path of the wrong field, with the map key that msgspec leaves out."""
    at, missing = _AT.search(str(error)), _FIELD.search(str(error))
    path = (at[1] if at else "$") + (f".{missing[1]}" if missing else "")
    shown, kind = "$", cast(Any, AgentCheckpoint)
    for part in _PART.findall(path):
        if part.startswith("."):
            kind = get_type_hints(kind, include_extras=True)[part[1:]]
            plain, shown = plain.get(part[1:]), shown + part
        else:
            kind = get_args(kind)[-1]
            key = _first_bad(plain, kind) if part == _ANY_KEY else int(part[1:-1])
            plain, shown = plain[key], f"{shown}[{to_json(key)}]"
    return shown


def _first_bad(items: dict[str, Any], kind: Any) -> str:
    for key, item in items.items():
        try:
            msgspec.convert(item, thread_safe_struct(kind))
        except msgspec.ValidationError:
            return key
    raise AssertionError("msgspec found a bad value in this map")


def _bad(path: str, why: str) -> Invalid:
    return Invalid(
        "bad_checkpoint",
        f"this is no AgentCheckpoint, {path} is wrong ({why}): take it again from its session, or "
        "see docs/agent-checkpoint.schema.json",
        path=path,
    )
