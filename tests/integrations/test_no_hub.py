"""Adapters that are given a path, or nothing, where a hub belongs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ortet.errors import Invalid
from ortet.integrations.adk import OrtetArtifactService, OrtetMemoryService, OrtetSessionService
from ortet.integrations.agent_framework import OrtetCheckpointStorage, OrtetHistoryProvider
from ortet.integrations.claude import OrtetSessionStore
from ortet.integrations.langgraph import OrtetSaver, OrtetStore
from ortet.integrations.openai_agents import OrtetSession
from ortet.integrations.pydantic_ai import OrtetHistory

MADE: list[Callable[[Any], object]] = [
    OrtetSaver,
    OrtetStore,
    OrtetSessionService,
    OrtetArtifactService,
    OrtetMemoryService,
    OrtetSessionStore,
    OrtetHistoryProvider,
    lambda hub: OrtetCheckpointStorage(hub, "flow"),
    lambda hub: OrtetSession("chat", hub),
    lambda hub: OrtetHistory("chat", hub),
]


@pytest.mark.parametrize("hub", ["chats", Path("chats"), None])
@pytest.mark.parametrize("make", MADE)
def test_an_adapter_without_a_hub_is_refused_with_advice(
    make: Callable[[Any], object], hub: Any
) -> None:
    with pytest.raises(Invalid, match=r"ortet\.open\(\)") as caught:
        make(hub)
    assert caught.value.kind == "bad_hub"
