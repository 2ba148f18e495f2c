"""Export sessions as data sets for evaluation, one JSON object per line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortet._util.codec import to_json
from ortet.errors import Unavailable
from ortet.journal.conversation.superseded import is_superseded
from ortet.journal.state.records import message_of

if TYPE_CHECKING:
    from ortet.sessions.manager import SessionManager
    from ortet.sessions.reader import SessionReader


_ACTION_FIELDS = ("id", "name", "args", "kwargs", "why")
_OUTCOME_FIELDS = ("state", "outcome", "error")


def export_jsonl(sessions: SessionManager, path: Path, ids: Sequence[str] | None) -> int:
    """Write sessions to a JSONL file; see `Governance.export_jsonl`."""
    wanted = [row.id for row in sessions.all()] if ids is None else list(ids)
    # read all first: an unknown session must not leave a file behind
    views = [sessions.get(id_) for id_ in wanted]
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            file.writelines(jsonl_lines(views))
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise Unavailable(
            "io_error", f"{path} cannot be written ({error.strerror}): check place and permissions"
        ) from error
    return len(views)


def jsonl_lines(views: Iterable[SessionReader]) -> Iterator[str]:
    return (to_json(dataset_record(view)) + "\n" for view in views)


def dataset_record(view: SessionReader) -> dict[str, Any]:
    """Return a session as one example of a data set.

    It contains compacted messages. It does not contain erased or superseded messages.
    """
    messages: list[dict[str, Any]] = []
    actions: dict[str, dict[str, Any]] = {}
    for event in view.events():
        data = event.data
        if event.erased:
            continue
        if event.kind == "message" and not is_superseded(
            view.internals.state.core.aside, event.seq
        ):
            said = message_of(event)
            messages.append({"role": said.role, "content": said.content, **said.extra})
        elif event.kind == "begun":
            actions[data["id"]] = {key: data[key] for key in _ACTION_FIELDS if key in data}
        elif event.kind == "ended" and data["id"] in actions:
            actions[data["id"]] |= {key: data[key] for key in _OUTCOME_FIELDS if key in data}
    head = view.head
    return {
        "id": view.id,
        "name": view.name,
        "agent": view.agent,
        "status": view.status,
        "goal": view.goal,
        "plan": view.steps,
        "step": view.step,
        "messages": messages,
        "actions": list(actions.values()),
        "facts": [fact.text for fact in view.facts()],
        "decisions": [
            {"text": one.text, "why": one.why, "instead_of": one.instead_of}
            for one in view.conversation.decisions()
        ],
        "spent": view.accounting.spent(),
        "commit": head.oid if head else None,
    }
