"""Adapters that are given a path, or nothing, where a hub belongs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ortet.errors import Invalid
from ortet.surface.adk import OrtetArtifactService, OrtetMemoryService, OrtetSessionService
from ortet.surface.agent_framework import OrtetCheckpointStorage, OrtetHistoryProvider
from ortet.surface.claude import OrtetSessionStore
from ortet.surface.langgraph import OrtetSaver, OrtetStore
from ortet.surface.openai_agents import OrtetSession
from ortet.surface.pydantic_ai import OrtetHistory

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
