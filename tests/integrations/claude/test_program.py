"""With the real program of Claude Code, which comes with the SDK: it edits files by its shell, is
mirrored into the store, rewound, and resumed from there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, query
from claude_agent_sdk.types import MirrorErrorMessage
from tests.integrations.claude.api import Api, serving
from tests.integrations.claude.lines import key

from ortet.hub.hub import Hub
from ortet.integrations.claude import OrtetSessionStore
from ortet.integrations.claude.transcript import transcript_session_name


@pytest.fixture
def api() -> Iterator[Api]:
    with serving() as opened:
        yield opened


class Program:
    def __init__(self, store: OrtetSessionStore, work: Path, api: Api, home: Path) -> None:
        self._given: dict[str, Any] = {
            "cwd": str(work),
            "session_store": store,
            "permission_mode": "bypassPermissions",
            "setting_sources": [],
            "env": {
                "ANTHROPIC_BASE_URL": api.url,
                "ANTHROPIC_API_KEY": "none",
                "HOME": str(home),
                "CLAUDE_CONFIG_DIR": str(home / ".claude"),
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "IS_SANDBOX": "1",  # or it refuses to run as root
            },
        }

    async def ask(self, prompt: str, **more: Any) -> str:
        ended: ResultMessage | None = None
        async for message in query(
            prompt=prompt, options=ClaudeAgentOptions(**self._given, **more)
        ):
            assert not isinstance(message, MirrorErrorMessage), message
            ended = message if isinstance(message, ResultMessage) else ended
        assert ended is not None
        assert not ended.is_error
        return ended.session_id


def test_a_rewound_claude_session_resumes_without_the_dropped_turns(
    hub: Hub, tmp_path: Path, api: Api
) -> None:
    work, home = tmp_path / "work", tmp_path / "home"
    for place in (work, home):
        place.mkdir()
    (work / "a.txt").write_text("one\n")
    store = OrtetSessionStore(hub, workspace=work)
    program = Program(store, work, api, home)

    async def through() -> str:
        id_ = await program.ask("RUN: echo two > a.txt; echo new > b.txt")
        assert sorted(path.name for path in work.iterdir()) == ["a.txt", "b.txt"]
        assert await program.ask("RUN: rm b.txt; echo three > a.txt", resume=id_) == id_
        assert [path.name for path in work.iterdir()] == ["a.txt"]
        assert [turn.text for turn in await store.turns(id_)] == [
            "RUN: echo two > a.txt; echo new > b.txt",
            "RUN: rm b.txt; echo three > a.txt",
        ]
        told = await store.rewind(id_, 1)
        assert told.exact
        assert (work / "a.txt").read_text() == "two\n"
        assert (work / "b.txt").read_text() == "new\n"
        await program.ask("and now?", resume=id_)
        return id_

    id_ = anyio.run(through)
    said = str(api.asked[-1]["messages"])
    assert "echo two" in said
    assert "rm b.txt" not in said, "what was rewound is not known any more"
    view = hub.get(transcript_session_name(key(work, id_)))
    assert [m.content for m in view.messages() if isinstance(m.content, str)][-1] == "and now?"
    hub.verify()
