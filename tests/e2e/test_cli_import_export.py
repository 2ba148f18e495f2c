"""import --from and export --format, through a real process."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from tests.fixtures.commands import Ortet
from tests.integrations.transcripts.checking import check_anthropic, check_openai, check_responses
from tests.integrations.transcripts.written import CONVERSATION, Claude, rollout, small, text, write

NAME = f"claude-code/{CONVERSATION}"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the agents worked."""
    found = tmp_path / "work dir.é"
    found.mkdir()
    return found


@pytest.fixture
def kept(ortet: Ortet, place: Path) -> Path:
    """The transcript that Claude Code keeps of it."""
    claude = small()
    for line in claude.lines:
        if "cwd" in line:
            line["cwd"] = str(place)
    folder = re.sub(r"[^A-Za-z0-9]", "-", str(place))
    return claude.write(ortet.home / ".claude" / "projects" / folder / f"{CONVERSATION}.jsonl")


def test_import_takes_the_newest_transcript_of_the_current_directory(
    ortet: Ortet, place: Path, kept: Path, tmp_path: Path
) -> None:
    older = write(kept.with_name(f"{CONVERSATION[:-1]}2.jsonl"), small().lines[:4])
    lines = older.read_text().replace("/home/ada/parser", str(place))
    older.write_text(lines)
    os.utime(older, (1, 1))
    dry = ortet.json("import", "--from", "claude-code", "--dry-run", cwd=place)
    assert [one["added"] for one in dry["sessions"]] == [15]
    assert [one["path"] for one in dry["others"]] == [str(older)]
    assert ortet.json("session", "ls", cwd=place) == []
    done = ortet("import", "--from", "claude-code", cwd=place)
    assert done.out.startswith(f"{NAME}: 15 of 15 lines taken in\n")
    assert "11 messages, 1 thought, 3 effects, 1 file" in done.out
    assert "1 older transcript of this directory" in done.out
    again = ortet.json("import", "--from", "claude-code", cwd=place)
    assert [one["added"] for one in again["sessions"]] == [0]
    everything = ortet.json("import", "--from", "claude-code", "--all", cwd=tmp_path)
    assert sorted(one["added"] for one in everything["sessions"]) == [0, 4]
    hits = ortet.json("recall", "which token is dropped?", "-s", NAME, cwd=place)
    assert hits
    assert ortet.json("verify", cwd=place)["ok"] is True


def test_import_without_a_transcript_of_this_directory_lists_others(
    ortet: Ortet, tmp_path: Path, kept: Path
) -> None:
    done = ortet("import", "--from", "claude-code", cwd=tmp_path, code=4)
    assert str(kept.name) in done.out and "--all" in done.err
    done = ortet("import", "--from", "claude-code", "--json", cwd=tmp_path, code=4)
    assert done.error["kind"] == "no_transcript"
    assert [one["path"] for one in done.error["details"]["transcripts"]] == [str(kept)]
    assert ortet.kind("import", "--from", "codex", cwd=tmp_path, code=4) == "no_directory"


def test_import_accepts_files_directories_and_links(
    ortet: Ortet, tmp_path: Path, place: Path
) -> None:
    root = tmp_path / "sessions"
    path = rollout().write(root / "2025" / "11" / "20" / "rollout-2025-11-20T10-00-00-x.jsonl")
    (root / "loop").symlink_to(root)
    (root / "linked.jsonl").symlink_to(path)
    (root / "rollout-dir.jsonl").mkdir()
    found = ortet.json("import", "--from", "codex", str(root), cwd=place)["sessions"]
    assert [(one["name"], one["added"]) for one in found] == [(f"codex/{CONVERSATION}", 17)]
    link = tmp_path / "link.jsonl"
    link.symlink_to(path)
    named = ("import", "--from", "codex", str(link), "--name", "mine", "--agent", "me")
    (one,) = ortet.json(*named, cwd=place)["sessions"]
    assert (one["name"], one["added"]) == ("mine", 17)
    agents = {row["name"]: row["agent"] for row in ortet.json("session", "ls", cwd=place)}
    assert agents["mine"] == "me"
    for word, code, kind in (
        ("nothing.jsonl", 4, "no_file"),
        (os.devnull, 2, "not_a_file"),
        (str(place), 4, "no_transcript"),
    ):
        assert ortet.kind("import", "--from", "codex", word, cwd=place, code=code) == kind
    for words in (["x", "--all"], ["--from", "cursor"], ["--from", "codex", "x", "--all"], []):
        ortet("import", *words, cwd=place, code=2)


def test_transcripts_of_subagents_are_imported_with_their_parent(
    ortet: Ortet, place: Path, kept: Path
) -> None:
    def agent(id_: str, path: Path) -> None:
        claude = Claude()
        claude.prompt(f"look, {id_}", isSidechain=True, agentId=id_)
        claude.answer(text("nothing"), id_=f"msg_{id_}", isSidechain=True, agentId=id_)
        claude.write(path)

    agent("aa11", kept.with_suffix("") / "subagents" / "agent-aa11.jsonl")
    agent("bb22", kept.with_name("agent-bb22.jsonl"))
    found = ortet.json("import", "--from", "claude-code", cwd=place)["sessions"]
    assert [(one["name"], one["parent"]) for one in found] == [
        (NAME, ""),
        (f"{NAME}/agent-aa11", NAME),
        (f"{NAME}/agent-bb22", NAME),
    ]


def test_imported_text_is_escaped_for_the_terminal(ortet: Ortet, tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202e"
    claude = Claude()
    claude.prompt(f"hello {evil}")
    part = {"type": "tool_use", "id": "t", "name": "Write", "input": {"file_path": f"/a{evil}"}}
    claude.answer(part, id_="m")
    claude.result("t", f"written {evil}")
    claude.bare(f"new {evil}")
    path = claude.write(tmp_path / f"x{evil[:8]}.jsonl")
    done = ortet("import", "--from", "claude-code", str(path), cwd=tmp_path)
    (row,) = ortet.json("session", "ls", cwd=tmp_path)
    for words in (["journal", row["name"]], ["session", "ls"], ["effects", row["name"]]):
        done.out += ortet(*words, cwd=tmp_path).out
    done.out += ortet("export", row["name"], "--format", "openai", cwd=tmp_path).out
    assert "hello" in done.out
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", done.out + done.err)


def test_export_writes_every_format_and_refuses_others(ortet: Ortet, tmp_path: Path) -> None:
    path = small().write(tmp_path / "x.jsonl")
    ortet("import", "--from", "claude-code", str(path), "--name", "fix", cwd=tmp_path)
    for format_, check in (
        ("anthropic", check_anthropic),
        ("openai", check_openai),
        ("openai-responses", check_responses),
    ):
        check(json.loads(ortet("export", "fix", "--format", format_, cwd=tmp_path).out))
    done = ortet("export", "fix", "--format", "otel", "-o", "spans.json", cwd=tmp_path)
    assert done.out == "fix -> spans.json\n"
    spans = json.loads((tmp_path / "spans.json").read_text())
    assert len(spans["resourceSpans"][0]["scopeSpans"][0]["spans"]) == 11
    for words, code in (
        (["export", "fix", "--format", "xml"], 2),
        (["export", "fix", "fix", "--format", "openai"], 2),
        (["export", "fix", "out", "--whole"], 2),
        (["export", "fix", "--format", "openai", "--content"], 2),
        (["export", "nobody", "--format", "openai"], 4),
        (["export", "fix", "--format", "openai", "-o", "no/such/place"], 7),
        (["export"], 2),
    ):
        ortet(*words, cwd=tmp_path, code=code)
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(
    ("count", "told"),
    [(1, "1 line not understood, kept as it is"), (2, "2 lines not understood, kept as they are")],
)
def test_lines_that_are_not_understood_are_counted(
    ortet: Ortet, tmp_path: Path, count: int, told: str
) -> None:
    path = write(tmp_path / "odd.jsonl", small().lines)
    with path.open("a") as file:
        file.write("no JSON\n" * count)
    assert told in ortet("import", "--from", "claude-code", str(path), cwd=tmp_path).out
