"""Lines as Claude Code writes them, and batches as the SDK hands them on."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import anyio
from claude_agent_sdk import SessionKey, SessionStoreEntry, project_key_for_directory

from ortet.integrations.claude import OrtetSessionStore

SESSION = "5e7c7df0-c236-4231-98c8-c794682a5c45"


def key(directory: Path | None = None, session: str = SESSION) -> SessionKey:
    return {"project_key": project_key_for_directory(directory), "session_id": session}


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {
        "type": role,
        "uuid": str(uuid4()),
        "parentUuid": None,
        "sessionId": SESSION,
        "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        "cwd": "/somewhere",
        "isSidechain": False,
        "message": {"role": role, "content": content, "id": "msg_1"},
        **more,
    }


def prompt(text: str) -> dict[str, Any]:
    return said("user", text)


def call(name: str, **given: Any) -> dict[str, Any]:
    part = {"type": "tool_use", "id": f"toolu_{uuid4()}", "name": name, "input": given}
    return said("assistant", [part])


def result(of: dict[str, Any], text: str) -> dict[str, Any]:
    id_ = of["message"]["content"][0]["id"]
    part = {"type": "tool_result", "tool_use_id": id_, "content": text}
    return said("user", [part], toolUseResult={"stdout": text})


def answer(text: str) -> dict[str, Any]:
    return said("assistant", [{"type": "text", "text": text}])


def append(store: OrtetSessionStore, where: SessionKey, *entries: dict[str, Any]) -> None:
    anyio.run(store.append, where, cast(list[SessionStoreEntry], list(entries)))


def load(store: OrtetSessionStore, where: SessionKey) -> list[dict[str, Any]] | None:
    return cast(list[dict[str, Any]] | None, anyio.run(store.load, where))
