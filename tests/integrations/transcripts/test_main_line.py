"""Which conversation is the main one: the one that the tool's own SDK reads from the same file."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from claude_agent_sdk import get_session_messages
from tests.integrations.transcripts.written import CONVERSATION, Claude, text, thinking, use

from ortet.hub.hub import Hub
from ortet.integrations.transcripts.importer import import_transcript, read_progress


def wandering(chance: random.Random) -> Claude:
    """Turns with several tools at once, questions taken back, agents, and lines beside."""
    claude = Claude("/home/ada/parser")
    ends: list[str | None] = [None]
    for turn in range(chance.randrange(2, 9)):
        claude.last = chance.choice(ends) if chance.random() < 0.3 else ends[-1]
        claude.prompt(f"question {turn}", isMeta=True) if chance.random() < 0.2 else None
        claude.prompt(f"question {turn}")
        for step in range(chance.randrange(3)):
            answer = f"msg_{turn}_{step}"
            if chance.random() < 0.5:
                claude.answer(thinking("hm"), id_=answer)
            calls = [f"toolu_{turn}_{step}_{one}" for one in range(chance.randrange(1, 4))]
            made = {one: claude.answer(use(one, "Bash", command="ls"), id_=answer) for one in calls}
            if chance.random() < 0.3:
                claude.line("progress", data={"type": "bash_progress"})
            chance.shuffle(calls)
            for call in calls:
                claude.result(call, "done", parentUuid=made[call])
        if chance.random() < 0.2:
            back, claude.last = claude.last, None
            claude.prompt("look", isSidechain=True, agentId="aa")
            claude.answer(text("done"), id_=f"msg_side_{turn}", isSidechain=True, agentId="aa")
            claude.last = back
        claude.answer(text("so it is"), id_=f"msg_{turn}_end")
        if chance.random() < 0.5:
            claude.line("system", subtype="turn_duration", durationMs=1)
        ends.append(claude.last)
    return claude


@pytest.mark.parametrize("seed", range(12))
def test_the_main_conversation_is_the_one_the_sdk_reads(
    hub: Hub, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    claude = wandering(random.Random(seed))
    folder = re.sub(r"[^A-Za-z0-9]", "-", "/home/ada/parser")
    path = tmp_path / "claude" / "projects" / folder / f"{CONVERSATION}.jsonl"
    claude.write(path)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    expected = {message.uuid for message in get_session_messages(CONVERSATION)}
    main, *others = import_transcript(hub, "claude-code", path)
    shown = {
        line["uuid"]
        for line in claude.lines
        if line["type"] in ("user", "assistant") and not line.get("isMeta")
    }
    assert set(read_progress(hub.get(main.session)).lines) & shown == expected
    every = [set(read_progress(hub.get(one.session)).lines) for one in (main, *others)]
    assert set.union(*every) == {line["uuid"] for line in claude.lines}


def test_a_growing_transcript_is_read_like_the_sdk_reads_it(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same while it grows: what was left since the last look moves to a branch."""
    claude = wandering(random.Random(3))
    path = tmp_path / "claude" / "projects" / "-home-ada-parser" / f"{CONVERSATION}.jsonl"
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    lines = claude.lines
    for count in range(1, len(lines) + 1, 5):
        claude.lines = lines[:count]
        claude.write(path)
        main, *_ = import_transcript(hub, "claude-code", path)
        expected = {message.uuid for message in get_session_messages(CONVERSATION)}
        shown = {
            line["uuid"]
            for line in claude.lines
            if line["type"] in ("user", "assistant") and not line.get("isMeta")
        }
        assert set(read_progress(hub.get(main.session)).lines) & shown == expected
    hub.verify()
