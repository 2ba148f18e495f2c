"""OrtetSessionStore keeps the contract of the SDK, and every line as it is."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import claude_agent_sdk as sdk
import pytest
from claude_agent_sdk import SessionKey, SessionStoreEntry
from claude_agent_sdk.testing import run_session_store_conformance
from tests.fixtures import forked
from tests.integrations.claude.lines import (
    SESSION,
    answer,
    append,
    call,
    key,
    load,
    prompt,
    result,
    said,
)

import ortet
from ortet.errors import Invalid, NotFound
from ortet.hub.hub import Hub
from ortet.integrations.claude import OrtetSessionStore
from ortet.integrations.claude.transcript import transcript_session_name

OPTIONAL = ("list_sessions", "list_session_summaries", "delete", "list_subkeys")


@pytest.fixture
def store(hub: Hub) -> OrtetSessionStore:
    return OrtetSessionStore(hub)


def test_conformance_with_every_optional_method(tmp_path: Path) -> None:
    calls: Counter[str] = Counter()
    hubs: list[Hub] = []

    class Counted(OrtetSessionStore):
        """Which methods the suite has called."""

    for name in OPTIONAL:
        plain = getattr(OrtetSessionStore, name)

        async def counted(self: Any, given: Any, *, plain: Any = plain, name: str = name) -> Any:
            calls[name] += 1
            return await plain(self, given)

        setattr(Counted, name, counted)

    def fresh() -> OrtetSessionStore:
        hubs.append(ortet.open(tmp_path / f"store{len(hubs)}"))
        return Counted(hubs[-1])

    anyio.run(partial(run_session_store_conformance, fresh))
    assert set(calls) == set(OPTIONAL), "a contract of an optional method was skipped"
    for hub in hubs:
        hub.close()


def test_spoken_lines_become_messages_and_other_lines_are_kept(
    store: OrtetSessionStore, hub: Hub
) -> None:
    run = call("Bash", command="ls")
    lines = [
        {"type": "queue-operation", "operation": "enqueue", "sessionId": SESSION},
        prompt("where is the lexer?"),
        run,
        result(run, "lexer.py"),
        {"type": "of-a-later-release", "uuid": "u1", "deep": {"a": [1, 2.5, None, True]}},
        answer("in lexer.py"),
    ]
    append(store, key(), *lines)
    assert load(store, key()) == lines
    view = hub.get(transcript_session_name(key()))
    assert [m.role for m in view.messages()] == ["user", "assistant", "user", "assistant"]
    assert view.messages()[0].content == "where is the lexer?"
    assert len(view.records("claude.entry")) == 2
    assert view.recall("lexer")[0].text in ("where is the lexer?", "in lexer.py", "lexer.py")
    assert "where is the lexer?" in view.briefing().markdown
    hub.verify()


@pytest.mark.parametrize(
    "odd",
    [
        said("user", "half a character: \ud83d"),
        {"type": "cost", "tokens": 2**70, "share": -(2**63)},
        {"type": "rate", "value": float("inf")},
        said("assistant", [{"type": "text", "text": "x", "n": 2**65}]),
        said("user", [{"type": "image", "data": "A" * 3_000_000}, {"type": "text", "text": "see"}]),
        {"type": "snapshot", "blob": "é" * 900_000},
        {"type": "nul", "text": "a\0b", "": {"": ""}},
        said("user", "role and type differ", message={"role": "tool", "content": 5}),
        said("assistant", None),
        {"type": "user", "message": "no dict"},
        said("user", "aside", isSidechain=True),
        {"type": "deep", "at": [[[[[[[[[[{"a": 1}]]]]]]]]]]},
    ],
    ids=lambda odd: odd["type"],
)
def test_odd_lines_come_back_as_they_were(store: OrtetSessionStore, odd: dict[str, Any]) -> None:
    lines = [odd, prompt("before"), odd, answer("after")]
    append(store, key(), *lines)
    if "uuid" in odd:
        del lines[2]
    assert load(store, key()) == lines
    assert len(anyio.run(store.list_session_summaries, key()["project_key"])) == 1


def test_lines_nested_deeper_than_the_journal_limit_are_kept(store: OrtetSessionStore) -> None:
    deep: dict[str, Any] = {}
    for _ in range(200):
        deep = {"in": deep}
    append(store, key(), {"type": "deep", **deep})
    assert load(store, key()) == [{"type": "deep", **deep}]


def test_a_line_that_is_not_json_is_refused_by_its_uuid(store: OrtetSessionStore) -> None:
    with pytest.raises(Invalid, match="'u9'"):
        append(store, key(), {"type": "x", "uuid": "u9", "value": object()})
    assert load(store, key()) is None


def test_a_message_with_a_large_image_is_found_by_its_text(
    store: OrtetSessionStore, hub: Hub
) -> None:
    parts = [{"type": "image", "data": "B" * 2_000_000}, {"type": "text", "text": "a red fox"}]
    append(store, key(), said("user", parts))
    view = hub.get(transcript_session_name(key()))
    assert "a red fox" in view.messages()[0].content
    view.recall("fox")
    hub.sweep()
    found = load(store, key())
    assert found is not None
    assert found[0]["message"]["content"] == parts


def test_a_uuid_is_written_once_and_lines_without_are_not_compared(
    store: OrtetSessionStore, hub: Hub
) -> None:
    first, second, mark = prompt("one"), answer("two"), {"type": "mode", "mode": "plan"}
    append(store, key(), first, mark)
    append(store, key(), first, second, second, mark)
    assert load(store, key()) == [first, mark, second, mark]
    with ortet.open(hub.root) as other:  # another process starts with nothing in memory
        append(OrtetSessionStore(other), key(), first, second)
    assert load(store, key()) == [first, mark, second, mark]


@pytest.mark.parametrize(
    "odd",
    [
        "../../etc/passwd",
        "/",
        "a/b\\c",
        "7",
        "ключ ",
        "x" * 5000,
        "a\nb",
        "con:",
        "-",
        "..",
    ],
)
def test_keys_are_any_text(store: OrtetSessionStore, odd: str) -> None:
    main: SessionKey = {"project_key": odd, "session_id": odd}
    sub: SessionKey = {**main, "subpath": odd}
    append(store, main, prompt("main"))
    append(store, sub, prompt("sub"))
    assert [len(load(store, one) or ()) for one in (main, sub)] == [1, 1]
    assert [one["session_id"] for one in anyio.run(store.list_sessions, odd)] == [odd]
    assert anyio.run(store.list_subkeys, cast(Any, main)) == [odd]
    anyio.run(store.delete, main)
    assert load(store, sub) is None


@pytest.mark.parametrize(
    "bad",
    [
        {"project_key": "p"},
        {"project_key": "p", "session_id": ""},
        {"project_key": "p", "session_id": "s", "subpath": ""},
        {"project_key": "p", "session_id": "\ud800"},
        {},
        5,
    ],
)
def test_an_invalid_transcript_key_is_refused(store: OrtetSessionStore, bad: Any) -> None:
    with pytest.raises(Invalid, match="no key of a transcript"):
        load(store, bad)


def test_the_functions_of_the_sdk_work_on_it(store: OrtetSessionStore) -> None:
    async def through() -> None:
        lines = [prompt("fix the lexer"), answer("done")]
        lines[1]["parentUuid"] = lines[0]["uuid"]
        await store.append(key(), cast(list[SessionStoreEntry], lines))
        await sdk.rename_session_via_store(store, SESSION, "the lexer")
        await sdk.tag_session_via_store(store, SESSION, "bug")
        (info,) = await sdk.list_sessions_from_store(store)
        assert (info.summary, info.tag, info.first_prompt) == ("the lexer", "bug", "fix the lexer")
        messages = await sdk.get_session_messages_from_store(store, SESSION)
        assert [one.type for one in messages] == ["user", "assistant"]
        forked = await sdk.fork_session_via_store(store, SESSION)
        assert len(await sdk.get_session_messages_from_store(store, forked.session_id)) == 2
        await sdk.delete_session_via_store(store, SESSION)
        assert [one.session_id for one in await sdk.list_sessions_from_store(store)] == [
            forked.session_id
        ]

    anyio.run(through)


def test_a_fork_costs_the_same_however_long_the_transcript(
    store: OrtetSessionStore, hub: Hub
) -> None:
    lines = [prompt(f"question {n}") for n in range(300)]
    append(store, key(), *lines)
    new = anyio.run(store.fork, SESSION)
    copy = hub.get(transcript_session_name(key(session=new)))
    own = [event for event in copy.events() if event.timeline == copy.internals.row.timeline]
    assert len(own) <= 3
    found = load(store, key(session=new))
    assert found == [{**line, "sessionId": new} for line in lines]
    append(store, key(session=new), prompt("only there"))
    assert len(load(store, key(session=new)) or ()) == 301
    assert load(store, key()) == lines
    part = anyio.run(partial(store.fork, SESSION, up_to_message_id=lines[9]["uuid"]))
    assert len(load(store, key(session=part)) or ()) == 10
    listed = anyio.run(store.list_session_summaries, key()["project_key"])
    assert {one["session_id"] for one in listed} == {SESSION, new, part}
    assert all(one["data"]["first_prompt"] == "question 0" for one in listed)
    with pytest.raises(NotFound):
        anyio.run(partial(store.fork, SESSION, up_to_message_id="nobody's"))
    hub.verify()


def test_a_fork_made_by_ortet_is_no_session_of_the_sdk(store: OrtetSessionStore, hub: Hub) -> None:
    append(store, key(), prompt("one"))
    store.close()
    with hub.session(transcript_session_name(key())) as session:
        session.fork(1)
    again = OrtetSessionStore(hub)
    listed = anyio.run(again.list_sessions, key()["project_key"])
    assert [one["session_id"] for one in listed] == [SESSION]
    assert anyio.run(again.list_subkeys, cast(Any, key())) == []
    assert load(again, key()) is not None


_WRITER = """
import sys, anyio, ortet
from ortet.errors import Refused
from ortet.integrations.claude import OrtetSessionStore
hub = ortet.open(sys.argv[1])
store = OrtetSessionStore(hub)
me, count = sys.argv[2], int(sys.argv[3])
key = {"project_key": "p", "session_id": "s"}
async def main():
    for n in range(count):
        uuid = f"{me}-{n}"
        line = {"type": "user", "uuid": uuid, "message": {"role": "user", "content": uuid}}
        while True:
            try:
                await store.append(key, [line, {"type": "mark", "of": uuid}])
                break
            except Refused:  # the other has it for long, on a slow host: the SDK tries again
                pass
        print(uuid, flush=True)
anyio.run(main)
"""


def _writer(root: Path, me: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _WRITER, str(root), me, str(count)]
    return forked.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_lose_no_line_and_split_no_batch(store: OrtetSessionStore, hub: Hub) -> None:
    writers = [_writer(hub.root, me, 12) for me in ("a", "b")]
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    found = load(store, {"project_key": "p", "session_id": "s"})
    assert found is not None
    for me in ("a", "b"):
        ours = [one["uuid"] for one in found if one.get("uuid", "").startswith(me)]
        assert ours == [f"{me}-{n}" for n in range(12)]
    pairs = zip(found[::2], found[1::2], strict=True)
    assert all(line["uuid"] == mark["of"] for line, mark in pairs), "a batch was torn apart"


def test_acknowledged_lines_survive_sigkill_in_whole_batches(
    store: OrtetSessionStore, hub: Hub
) -> None:
    writer = _writer(hub.root, "k", 10_000)
    assert writer.stdout is not None
    told = [writer.stdout.readline().strip() for _ in range(20)]
    writer.kill()
    told += writer.communicate()[0].split()
    found = load(store, {"project_key": "p", "session_id": "s"})
    assert found is not None
    uuids = [one["uuid"] for one in found if "uuid" in one]
    assert uuids[: len(told)] == told
    assert len(found) == 2 * len(uuids), "a batch was torn apart"
    append(store, {"project_key": "p", "session_id": "s"}, prompt("and on"))
    hub.verify()
