"""Transcripts that are cut, damaged, strange or huge: nothing is lost, nothing is done twice."""

from __future__ import annotations

import base64
import json
import os
import random
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fixtures import forked
from tests.integrations.transcripts.checking import check_anthropic, check_openai, check_responses
from tests.integrations.transcripts.written import (
    CONVERSATION,
    Claude,
    rollout,
    small,
    text,
    use,
    write,
)

import ortet
from ortet.errors import Invalid, NotFound, OrtetError
from ortet.hub.hub import Hub
from ortet.integrations.otel_export import spans_of
from ortet.integrations.transcripts import importer, lines
from ortet.integrations.transcripts.importer import import_transcript
from ortet.integrations.transcripts.line_tree import LineChain, LineNode, chains
from ortet.journal import spill
from ortet.journal.conversation.text import text_of
from ortet.objects.store import PackedObjectStore
from ortet.sessions.actions.artifacts import StoredContent, load
from ortet.sessions.reader import SessionReader


def kept(view: SessionReader) -> list[bytes]:
    """Lines that were not understood, as they were."""
    found = []
    for event in view.events():
        if event.kind.endswith(".line"):
            data = event.data
            if spill.SPILL_KEY in data:
                ((_, named),) = data[spill.SPILL_KEY]
                found.append(
                    load(view.internals.store.objects, StoredContent(named["oid"], named["size"]))
                )
            elif "base64" in data:
                found.append(base64.b64decode(data["base64"]))
            else:
                found.append(data["raw"].encode() if "raw" in data else str(data).encode())
    return found


@pytest.mark.parametrize("tool", ["claude-code", "codex"])
def test_a_damaged_transcript_is_imported_and_exported_without_error(
    tmp_path: Path, tool: str
) -> None:
    """Cut anywhere and with bytes changed: taken in, exported, taken in again without news."""
    whole = (small() if tool == "claude-code" else rollout()).write(tmp_path / "x.jsonl")
    raw, chance = whole.read_bytes(), random.Random(7)
    with ortet.open(str(tmp_path / "store")) as hub:
        for number in range(40):
            damaged = bytearray(raw[: chance.randrange(1, len(raw))])
            for _ in range(chance.randrange(6)):
                damaged[chance.randrange(len(damaged))] = chance.choice(b'\0\n"{}\xff\xf0a1,:')
            path = tmp_path / f"rollout-{number}.jsonl"
            path.write_bytes(damaged)
            name = f"fuzz-{number}"
            found = import_transcript(hub, tool, path, name=name)
            for one in found if found[0].lines else ():
                view = hub.get(one.session)
                check_anthropic(view.conversation.export_messages("anthropic"))
                check_openai(view.conversation.export_messages("openai"))
                check_responses(view.conversation.export_messages("openai-responses"))
            told = sum(bool(line.strip()) for line in bytes(damaged).split(b"\n"))
            assert sum(one.lines for one in found) + any(one.rest for one in found) == told
            assert [one.added for one in import_transcript(hub, tool, path, name=name)] == [
                0
            ] * len(found)
        hub.verify()


_ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    "",
    "x",
    [],
    [[]],
    {},
    {"type": []},
    {"type": "text", "text": 7},
    {"type": "tool_result", "tool_use_id": "toolu_01", "content": {}},
    [{"type": "tool_use"}],
    10**30,
)


def _confused(value: Any, chance: random.Random) -> Any:
    """The same with something else in a place or two."""
    if chance.random() < 0.04:
        return chance.choice(_ODD)
    if isinstance(value, dict):
        return {key: _confused(one, chance) for key, one in value.items()}
    if isinstance(value, list):
        return [_confused(one, chance) for one in value]
    return value


@pytest.mark.parametrize("tool", ["claude-code", "codex"])
def test_values_of_unexpected_types_are_imported_without_error(tmp_path: Path, tool: str) -> None:
    whole = small() if tool == "claude-code" else rollout()
    with ortet.open(str(tmp_path / "store")) as hub:
        for number in range(40):
            chance = random.Random(number)
            said = [_confused(line, chance) for line in whole.lines]
            path = write(tmp_path / f"rollout-{number}.jsonl", said)
            name = f"odd-{number}"
            found = import_transcript(hub, tool, path, name=name)
            assert sum(one.added for one in found) == len(said)
            for one in found:
                view = hub.get(one.session)
                check_anthropic(view.conversation.export_messages("anthropic"))
                check_openai(view.conversation.export_messages("openai"))
                check_responses(view.conversation.export_messages("openai-responses"))
                spans_of(view, content=True)
            assert [one.added for one in import_transcript(hub, tool, path, name=name)] == [
                0
            ] * len(found)
        hub.verify()


def test_lines_that_are_no_json_are_kept(hub: Hub, tmp_path: Path) -> None:
    path = tmp_path / f"{CONVERSATION}.jsonl"
    odd = [
        b"not json",
        b'{"type": "user", "uuid": ',
        b"\xff\xfe\x00 invalid",
        b"[1, 2]",
        b"null",
        b"\0\0\0",
        b'{"no": "type"}',
        b'{"type": 7}',
        b"[" * 5000,
        b'{"type": "mode", "mode": NaN}',
        b'{"type": "mode", "deep": ' + b'{"a":' * 80 + b"1" + b"}" * 81,
        b'{"type": "mode", "large": 123456789012345678901234567890}',
    ]
    good = small().write(path).read_bytes()
    path.write_bytes(b"\n".join(odd) + b"\n" + good)
    (one,) = import_transcript(hub, "claude-code", path)
    assert (one.lines, one.messages) == (len(odd) + 15, 11)
    raw = b"\n".join(kept(hub.get(one.name)))
    for words in (b"not json", b"[1, 2]", b"no", b"[[[[", b"NaN", b"deep", b"1234567890123456789"):
        assert words in raw
    assert import_transcript(hub, "claude-code", path)[0].added == 0


def test_lone_surrogates_are_replaced(hub: Hub, tmp_path: Path) -> None:
    path = tmp_path / f"{CONVERSATION}.jsonl"
    claude = Claude()
    claude.prompt("MARK")
    raw = claude.write(path).read_bytes().replace(b"MARK", rb"cut \ud83d here")
    path.write_bytes(raw)
    (one,) = import_transcript(hub, "claude-code", path)
    assert one.unknown == 0
    assert hub.get(one.name).messages()[0].content == "cut \ufffd here"


def test_duplicate_and_circular_uuids_are_imported(hub: Hub, tmp_path: Path) -> None:
    claude = Claude()
    claude.prompt("one", uuid="a", parentUuid="c")
    claude.prompt("two", uuid="b", parentUuid="a")
    claude.prompt("three", uuid="c", parentUuid="b")
    claude.prompt("again", uuid="b", parentUuid="b")
    claude.prompt("itself", uuid="d", parentUuid="d")
    claude.prompt("nobody's", uuid="e", parentUuid="gone")
    claude.prompt("x", uuid="u" * 5000)
    path = claude.write(tmp_path / f"{CONVERSATION}.jsonl")
    found = import_transcript(hub, "claude-code", path)
    assert sum(one.added for one in found) == 7
    said = [text_of(message.content) for message in hub.get(found[0].name).messages()]
    assert said == ["one", "two", "three", "itself", "nobody's"]
    assert [one.added for one in import_transcript(hub, "claude-code", path)] == [0] * len(found)


def test_a_line_over_the_length_limit_is_kept_unparsed(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 300_000)
    claude = Claude()
    claude.prompt("before")
    claude.prompt("x" * 1_000_000)
    claude.prompt("after")
    path = claude.write(tmp_path / f"{CONVERSATION}.jsonl")
    (one,) = import_transcript(hub, "claude-code", path)
    view = hub.get(one.name)
    assert [text_of(message.content) for message in view.messages()] == ["before", "after"]
    long = path.read_bytes().splitlines(keepends=True)[1]
    assert b"".join(kept(view)) == long
    assert import_transcript(hub, "claude-code", path)[0].added == 0


def test_a_line_of_two_million_characters_is_imported(hub: Hub, tmp_path: Path) -> None:
    claude = Claude()
    claude.prompt("y" * 2_000_000)
    claude.prompt([text("many")] * 60_000)
    claude.prompt([{"type": "text", "text": "z" * 50}] * 30_000)
    path = claude.write(tmp_path / f"{CONVERSATION}.jsonl")
    (one,) = import_transcript(hub, "claude-code", path)
    view = hub.get(one.name)
    assert len(text_of(view.messages()[0].content)) < 10_000
    told = view.conversation.export_messages("anthropic")["messages"]
    assert told[0]["content"][0]["text"] == "y" * 2_000_000
    assert b"".join(kept(view)).count(b"many") == 60_000
    hub.verify()


def test_memory_does_not_grow_with_the_file(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """50 MB; beside what the store caches, a few bytes for each line are held."""
    assert isinstance(hub.objects, PackedObjectStore)
    monkeypatch.setattr(hub.objects.cache, "_limit", 4 << 20)
    path = tmp_path / f"{CONVERSATION}.jsonl"
    claude, blob = Claude(), "0123456789abcdef" * 6_400  # 100 kB
    with path.open("w", encoding="utf-8") as file:
        for number in range(250):
            claude.prompt(f"question {number}")
            claude.answer(use(f"toolu_{number}", "Bash", command=blob), id_=f"msg_{number}")
            claude.result(f"toolu_{number}", blob + str(number))
            file.writelines(json.dumps(line) + "\n" for line in claude.lines)
            claude.lines.clear()
    assert path.stat().st_size > 50_000_000
    tracemalloc.start()
    try:
        (one,) = import_transcript(hub, "claude-code", path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (one.lines, one.messages) == (750, 750)
    assert peak < 30_000_000


def test_paths_that_are_not_files_are_refused(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    for path, error in (("link", NotFound), ("pipe", Invalid), (".", OrtetError)):
        with pytest.raises(error):
            import_transcript(hub, "claude-code", tmp_path / path)
    with pytest.raises(Invalid, match="codex"):
        import_transcript(hub, "cursor", tmp_path / "x")
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    (one,) = import_transcript(hub, "claude-code", empty)
    assert (one.session, one.lines) == ("", 0)


def test_a_killed_import_is_completed_with_each_line_once(tmp_path: Path) -> None:
    """Whatever was written is known when it is read again: each line is there once."""
    path = tmp_path / f"{CONVERSATION}.jsonl"
    claude = small()
    for number in range(30):
        claude.prompt(f"question {number}")
        claude.answer(use(f"toolu_x{number}", "Bash", command="a"), id_=f"msg_x{number}")
        claude.result(f"toolu_x{number}", "done")
    claude.write(path)
    program = """
import sys, os, ortet
from pathlib import Path
from ortet.integrations.transcripts.importer import import_transcript
left = int(sys.argv[3])
def reach(point):
    global left
    left -= point == sys.argv[4]
    if not left:
        os._exit(9)
import ortet.sessions.writing.event_writer as ledger
ledger.failpoint = reach
with ortet.open(sys.argv[1]) as hub:
    import_transcript(hub, "claude-code", Path(sys.argv[2]))
"""
    store = str(tmp_path / "store")
    for count, point in ((3, "journal.after-append"), (9, "journal.before-append"), (2, "x")):
        argv = [sys.executable, "-c", program, store, str(path), str(count), point]
        assert forked.run(argv, check=False).returncode == (0 if point == "x" else 9)
    with ortet.open(store) as hub:
        view = hub.get(f"claude-code/{CONVERSATION}")
        said = [one for one in view.messages() if not one.extra.get("synthetic")]
        assert len(said) == 11 + 90
        assert len({one.extra["line"] for one in said if "line" in one.extra}) == len(said) - 1
        assert view.accounting.spent()["output_tokens"] == (5 + 30) * 30
        assert [effect.state for effect in view.effects()].count("done") == 32
        hub.verify()


def test_two_processes_importing_one_transcript_store_it_once(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process took it in between our look and our lease."""
    path = small().write(tmp_path / f"{CONVERSATION}.jsonl")
    index = importer.TOOLS["claude-code"].index

    def slow(*given: object) -> list[LineNode]:
        monkeypatch.undo()
        with ortet.open(str(tmp_path / "store")) as other:
            import_transcript(other, "claude-code", path)
        return index(*given)  # type: ignore[arg-type]

    tool = importer.TOOLS["claude-code"]
    late = importer.TranscriptTool(tool.name, tool.context, slow, tool.reader)
    monkeypatch.setattr(importer, "TOOLS", {"claude-code": late})
    (one,) = import_transcript(hub, "claude-code", path)
    assert one.messages == 0
    assert len(hub.get(one.name).messages()) == 11


@given(st.lists(st.tuples(st.integers(-1, 30), st.booleans()), max_size=30))
@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])
def test_every_line_belongs_to_exactly_one_chain(drawn: list[tuple[int, bool]]) -> None:
    line = lines.TranscriptLine(0, 1, "#x")
    nodes = [
        LineNode(line, str(at), min(parent, at - 1), weighs=weighs, said=weighs)
        for at, (parent, weighs) in enumerate(drawn)
    ]
    found = chains(nodes)
    assert sorted(at for chain in found for at in chain.nodes) == list(range(len(nodes)))
    for number, chain in enumerate(found):
        assert chain.nodes == sorted(chain.nodes)
        assert chain.parent < number
        assert number == 0 or chain.after < 0 or chain.after in found[chain.parent].nodes
    if any(node.weighs for node in nodes):
        last = max(at for at, node in enumerate(nodes) if node.weighs)
        assert last in found[0].nodes
    assert chains([]) == [LineChain([])]
