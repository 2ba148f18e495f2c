"""Event kinds of actions: their begin and end, approvals, model calls and artifacts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ortet.journal.conversation.text import clip, command_text, one_line
from ortet.journal.events import Event
from ortet.journal.kinds.event_kind import (
    LONG_CHARS,
    SHORT_CHARS,
    BriefingItems,
    BriefingSectionSpec,
    EventData,
    EventKind,
    FailedAction,
    PendingApproval,
    ReasonText,
    always,
    progress_text,
    short_id,
)
from ortet.journal.state.records import Approval, Artifact, Effect, answer_approval
from ortet.journal.state.state import SessionState


class _BegunData(msgspec.Struct):
    id: str = ""
    name: str = ""
    replay: str = ""
    key: str = ""
    scope: str = ""
    why: str = ""
    approval: str = ""
    where: str = ""


class _EndedData(msgspec.Struct):
    id: str = ""


class _ApprovalRequestData(msgspec.Struct):
    id: str = ""
    what: str = ""
    why: str = ""


class _ApprovalAnswerData(msgspec.Struct):
    id: str = ""
    ok: bool = False
    why: str = ""


class _ModelCallData(msgspec.Struct):
    provider: str = ""
    model: str = ""


class _ArtifactData(msgspec.Struct):
    name: str = ""
    version: int = 0
    oid: str = ""
    size: int = 0
    kind: str = ""
    media: str = ""
    link: str = ""
    action: str = ""
    why: str = ""


# reducers


def _fold_begun(state: SessionState, event: Event, data: EventData) -> None:
    effect = Effect(
        id=data["id"],
        name=data["name"],
        replay=data["replay"],
        state="begun",
        key=data.get("key", ""),
        scope=data.get("scope", ""),
        why=data.get("why", ""),
        digest=data.get("digest", ""),
        begun=event.seq,
        time=event.time,
        actor=event.actor,
        where=data.get("where") or "outside",
    )
    state.effects.set(effect.id, effect)
    names = _secret_names(data)
    if names:
        state.change_core(secrets={**state.core.secrets, **dict.fromkeys(names, event.seq)})
    approval = state.approvals.get(data.get("approval", ""))
    if approval is not None:
        state.approvals.set(approval.id, msgspec.structs.replace(approval, used=effect.id))


def _secret_names(data: EventData) -> list[str]:
    """Return the vault names of the secrets that a command used."""
    kwargs = data.get("kwargs")
    secrets = kwargs.get("secrets") if isinstance(kwargs, dict) and data["name"] == "run" else None
    names = secrets.values() if isinstance(secrets, dict) else secrets
    return [name for name in names or () if isinstance(name, str)]


def _fold_ended(state: SessionState, event: Event, data: EventData) -> None:
    effect = state.effects.get(data["id"])
    if effect is not None:
        ended = msgspec.structs.replace(effect, state=data["state"], ended=event.seq)
        state.effects.set(effect.id, ended)


def _fold_approval_request(state: SessionState, event: Event, data: EventData) -> None:
    approval = Approval(
        id=data["id"],
        what=data["what"],
        why=data.get("why", ""),
        digest=data.get("digest", ""),
        seq=event.seq,
        time=event.time,
    )
    state.approvals.set(approval.id, approval)


def _fold_approval_answer(state: SessionState, event: Event, data: EventData) -> None:
    approval = state.approvals.get(data["id"])
    if approval is not None:
        state.approvals.set(approval.id, answer_approval(approval, event))


def _fold_artifact(state: SessionState, event: Event, data: EventData) -> None:
    fields = {field: data[field] for field in Artifact.__struct_fields__ if field in data}
    artifact = Artifact(**{**fields, "seq": event.seq, "time": event.time})
    state.artifacts.set(f"{artifact.name}\0{artifact.version:08d}", artifact)


# lines


def _command_suffix(data: EventData) -> str:
    return f": {command}" if (command := command_text(data)) else ""


def _begun_line(data: EventData) -> str:
    key = f" key {data['key']}" if data.get("key") else ""
    call = f"{data.get('name', '')} ({data.get('replay', '')}){key}"
    return f"{call}, {short_id(data)}{_command_suffix(data)}"


def _begun_reason(data: EventData) -> str:
    return f"{data.get('name', '')}{_command_suffix(data)}"


def _ended_line(data: EventData) -> str:
    return f"{short_id(data)} {data.get('state', '')} {data.get('error', '')}".strip()


def _request_line(data: EventData) -> str:
    return f"may it {data.get('what', '')}?"


def _verdict(data: EventData) -> str:
    return "allowed" if data.get("ok") else "denied"


def _verdict_line(data: EventData) -> str:
    return f"{_verdict(data)} {short_id(data)}"


def _verdict_progress(data: EventData) -> str:
    return f"was {_verdict(data)}"


def _model_line(data: EventData) -> str:
    return str(data.get("model", ""))


def _artifact_progress(data: EventData) -> str:
    name = progress_text(str(data.get("name", "")))
    return f"made {name} (version {data.get('version', 1)})"


# briefing


def effect_label(effect: Effect) -> str:
    """Return the name of an effect and the command that it ran."""
    command = f": {one_line(effect.command, SHORT_CHARS)}" if effect.command else ""
    return f"{effect.name}{command}"


def _unsettled(items: BriefingItems) -> Sequence[Effect]:
    return items.unsettled


def _elsewhere(items: BriefingItems) -> Sequence[Effect]:
    return items.elsewhere


def _done(items: BriefingItems) -> Sequence[Effect]:
    return items.done


def _describe_effect(effect: Effect) -> tuple[str, Any]:
    why = f": {one_line(effect.why, SHORT_CHARS)}" if effect.why else ""
    data = {"id": effect.id, "name": effect.name, "why": clip(effect.why, LONG_CHARS)}
    data |= {"state": effect.state, "replay": effect.replay, "key": effect.key}
    if effect.command:
        data["command"] = clip(effect.command, LONG_CHARS)
    line = f"`{effect_label(effect)}`{why}"
    return (f"{line} ({effect.id})" if effect.state in ("begun", "unsettled") else line), data


def _describe_elsewhere(effect: Effect) -> tuple[str, Any]:
    line, data = _describe_effect(effect)
    return (f"{line} (key {one_line(effect.key, SHORT_CHARS)})" if effect.key else line), data


def _failures(items: BriefingItems) -> Sequence[FailedAction]:
    return items.failed


def _describe_failure(failure: FailedAction) -> tuple[str, Any]:
    line, data = _describe_effect(failure.effect)
    error = f" failed with {one_line(failure.error, SHORT_CHARS)}" if failure.error else " failed"
    return line + error, {**data, "error": clip(failure.error, LONG_CHARS)}


def _approvals(items: BriefingItems) -> Sequence[PendingApproval]:
    return items.approvals


def _describe_approval(approval: PendingApproval) -> tuple[str, Any]:
    why = f": {one_line(approval.why, SHORT_CHARS)}" if approval.why else ""
    line = f"{one_line(approval.what, LONG_CHARS)}{why} ({approval.id})"
    return line, {
        "id": approval.id,
        "what": clip(approval.what, LONG_CHARS),
        "why": clip(approval.why, LONG_CHARS),
    }


def _artifacts(items: BriefingItems) -> Sequence[Artifact]:
    return items.artifacts


def _describe_artifact(artifact: Artifact) -> tuple[str, Any]:
    kind = f", {artifact.kind}" if artifact.kind else ""
    link = f", {artifact.link}" if artifact.link else ""
    data = {"name": artifact.name, "version": artifact.version, "kind": artifact.kind}
    data |= {"oid": artifact.oid, "size": artifact.size, "link": artifact.link}
    return f"{artifact.name} (version {artifact.version}{kind}{link})", data


KINDS = (
    EventKind(
        name="begun",
        schema=_BegunData,
        reducer=_fold_begun,
        line=_begun_line,
        group="done",
        reason=ReasonText("action", _begun_reason),
        briefing=(
            BriefingSectionSpec(
                20,
                "unsettled",
                "Unsettled: find out whether it was done",
                100,
                _unsettled,
                _describe_effect,
            ),
            BriefingSectionSpec(
                25,
                "elsewhere",
                "Done on another branch, and not undone",
                95,
                _elsewhere,
                _describe_elsewhere,
            ),
        ),
    ),
    EventKind(
        name="ended",
        schema=_EndedData,
        reducer=_fold_ended,
        replay="skipped",
        line=_ended_line,
        group="done",
        briefing=(
            BriefingSectionSpec(80, "failed", "What failed", 40, _failures, _describe_failure),
            BriefingSectionSpec(100, "done", "What is done", 15, _done, _describe_effect),
        ),
    ),
    EventKind(
        name="asked",
        schema=_ApprovalRequestData,
        reducer=_fold_approval_request,
        replay="skipped",
        line=_request_line,
        group="done",
        reason=ReasonText("approval", _request_line),
        briefing=(
            BriefingSectionSpec(
                30, "approvals", "Waiting for approval", 90, _approvals, _describe_approval
            ),
        ),
    ),
    EventKind(
        name="given",
        schema=_ApprovalAnswerData,
        reducer=_fold_approval_answer,
        ends_wait=always,
        replay="never_requested",
        from_others=True,
        line=_verdict_line,
        group="done",
        progress=_verdict_progress,
        reason=ReasonText("approval", _verdict),
    ),
    EventKind(
        name="model",
        schema=_ModelCallData,
        expires_as_message=True,
        line=_model_line,
        group="done",
    ),
    EventKind(
        name="artifact",
        schema=_ArtifactData,
        reducer=_fold_artifact,
        survives_rewind=True,
        importance=0.05,
        group="done",
        progress=_artifact_progress,
        briefing=(
            BriefingSectionSpec(110, "artifacts", "Artifacts", 25, _artifacts, _describe_artifact),
        ),
    ),
)
