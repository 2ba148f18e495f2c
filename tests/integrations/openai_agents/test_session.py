from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agents import SessionSettings, SQLiteSession
from agents.memory import Session
from tests.fixtures.agent_items import ITEMS
from tests.fixtures.waiting import loop_turns

import ortet
from ortet.errors import Invalid
from ortet.hub.hub import Hub
from ortet.integrations.openai_agents import OrtetSession

PAIR: list[Any] = [
    {"role": "user", "content": "go"},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "done"},
    {"role": "assistant", "content": "so it is"},
]


def run(call: Any) -> Any:
    return asyncio.run(call)


def test_the_session_satisfies_the_sdk_protocol_and_its_settings(hub: Hub) -> None:
    session = OrtetSession("one", hub, session_settings={"limit": 2})
    assert isinstance(session, Session)
    assert session.session_settings == SessionSettings(limit=2)
    run(session.add_items(PAIR))
    assert run(session.get_items()) == PAIR[2:]
    assert run(session.get_items(limit=3)) == PAIR[1:]


def test_random_calls_answer_like_the_sqlite_session_of_the_sdk(hub: Hub) -> None:
    """The same random calls to both."""
    dice = random.Random(5)
    theirs, ours = SQLiteSession("x"), OrtetSession("x", hub)
    items = [item for several in ITEMS for item in several]

    async def step() -> None:
        what = dice.random()
        if what < 0.5:
            start = dice.randrange(len(items))
            given: list[Any] = items[start : start + dice.randrange(4)]
            await theirs.add_items(given)
            await ours.add_items(given)
        elif what < 0.7:
            assert await ours.pop_item() == await theirs.pop_item()
        elif what < 0.72:
            await theirs.clear_session()
            await ours.clear_session()
        limit = dice.choice([None, None, 0, 1, 2, 3, 5, 100, -1])
        assert await ours.get_items(limit) == await theirs.get_items(limit)

    async def go() -> None:
        for _ in range(150):
            await step()

    run(go())
    theirs.close()


def test_the_items_are_messages_of_an_ordinary_ortet_session(hub: Hub, store: Path) -> None:
    session = OrtetSession("fix-42", hub, goal="make it green", budget={"tokens": 100})
    run(session.add_items(PAIR))
    with hub.session("fix-42") as s:  # which is lent
        assert (s.goal, s.accounting.limits()) == ("make it green", {"tokens": 100})
        assert [(m.role, m.content) for m in s.messages()] == [
            ("user", "go"),
            ("assistant", ""),
            ("tool", "done"),
            ("assistant", "so it is"),
        ]
        assert s.recall("so it is", k=1)[0].text == "so it is"
        s.say("user", "from outside")
        s.learn("the lexer is slow")
    assert run(session.get_items(1)) == [{"role": "user", "content": "from outside"}]
    assert run(session.pop_item()) == {"role": "user", "content": "from outside"}
    assert run(session.get_items()) == PAIR
    view = hub.get("fix-42")
    assert [fact.text for fact in view.facts()] == ["the lexer is slow"]  # learned after it
    assert len(view.messages()) == 4


def test_popped_and_cleared_items_can_be_recovered(hub: Hub) -> None:
    session = OrtetSession("x", hub)
    run(session.add_items(PAIR))
    run(session.pop_item())
    run(session.clear_session())
    with hub.session("x") as s:
        assert s.messages() == []
        assert [m.role for m in s.conversation.dropped()] == ["user", "assistant", "tool"]
        assert not s.context().messages
        s.undo()  # what was cleared was not committed
        assert [m.content for m in s.messages()][-1] == "so it is"
    assert run(session.get_items()) == PAIR


def test_pop_item_never_removes_a_compaction_summary(hub: Hub) -> None:
    session = OrtetSession("x", hub)
    run(session.add_items([{"role": "user", "content": str(n)} for n in range(10)]))
    with hub.session("x") as s:
        s.compact(keep_last=3, summarise=lambda messages: f"{len(messages)} of them")
        s.compact(keep_last=2, summarise=lambda messages: f"{len(messages)} more")
    summary = {"role": "user", "content": "Summary of what was said before:\n2 more"}
    rest = [{"role": "user", "content": str(n)} for n in (8, 9)]
    assert run(session.get_items()) == [summary, *rest]
    assert run(session.pop_item()) == rest[1]
    assert run(session.get_items()) == [summary, rest[0]]
    assert [m.content for m in hub.get("x").conversation.dropped()] == [str(n) for n in range(8)]
    assert run(session.pop_item()) == rest[0]
    assert run(session.pop_item()) is None
    run(session.clear_session())
    assert run(session.get_items()) == []


def test_odd_ids_are_sessions_of_their_own(hub: Hub) -> None:
    ids = ["a", "a b", "a/b", "ä" * 5000, "../../etc", "x" * 61, "a\0b"]
    for id_ in ids:
        run(OrtetSession(id_, hub).add_items([{"role": "user", "content": id_[:9]}]))
    for id_ in ids:
        session = OrtetSession(id_, hub)
        assert run(session.get_items()) == [{"role": "user", "content": id_[:9]}]
        if session.name != id_:
            (told,) = hub.get(session.name).records("openai.session")
            assert told.data == {"session_id": id_}


def test_sessions_of_agents_are_apart(hub: Hub) -> None:
    run(OrtetSession("x", hub, agent="one").add_items(PAIR))
    assert run(OrtetSession("x", hub, agent="two").get_items()) == []


@pytest.mark.parametrize(
    ("bad", "place"),
    [
        ({"role": "user", "content": [{"data": b"x"}]}, r"item 1, at content\[0\].data: .*bytes"),
        ({"type": "x", "deep": {"er": [1, {2}]}}, r"item 1, at deep.er\[1\]: .*set"),
        ({"role": "user", "content": float("nan")}, "item 1, at content: .*nan"),
        ({"role": "user", "content": "\ud800"}, "item 1, at content: .*surrogates"),
        ({"role": "user", "content": 2**80}, "item 1, at content: .*ints"),
        ({"role": "user", "content": "", 3: 4}, r"item 1, at \[3\]"),
    ],
)
def test_an_item_that_cannot_be_stored_is_named_and_nothing_is_stored(
    hub: Hub, bad: Any, place: str
) -> None:
    session = OrtetSession("x", hub)
    with pytest.raises(Invalid, match=place):
        run(session.add_items([PAIR[0], bad]))
    assert run(session.get_items()) == []


def test_items_of_several_megabytes_are_stored_and_swept_safely(hub: Hub, store: Path) -> None:
    session = OrtetSession("x", hub)
    image = "data:image/png;base64," + "A" * 3_000_000
    items: list[Any] = [
        {"role": "user", "content": [{"type": "input_image", "image_url": image}]},
        PAIR[1],
        {**PAIR[2], "output": "y" * 2_000_000},
    ]
    run(session.add_items(items))
    assert run(session.get_items()) == items
    assert run(session.get_items(1)) == items[2:]
    session.close()
    with ortet.open(store) as other:
        assert run(OrtetSession("x", other).get_items()) == items
        assert other.verify().problems == []
        other.sweep()
        assert run(OrtetSession("x", other).get_items()) == items
    assert run(session.pop_item()) == items[2]
    assert run(session.get_items()) == items[:2]


def test_concurrent_calls_are_executed_in_order(hub: Hub) -> None:
    session = OrtetSession("x", hub)

    async def go() -> None:
        several = [
            session.add_items([{"role": "user", "content": f"{n}.{m}"} for m in range(3)])
            for n in range(40)
        ]
        await asyncio.gather(*several)

    run(go())
    said = [item["content"] for item in run(session.get_items())]
    assert said == [f"{n}.{m}" for n in range(40) for m in range(3)]


def test_a_cancelled_add_stores_all_items_or_none(hub: Hub) -> None:
    session = OrtetSession("x", hub)

    async def go() -> None:
        tasks = [asyncio.create_task(session.add_items(PAIR)) for _ in range(20)]
        await loop_turns()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        count = len(await session.get_items())
        assert count % len(PAIR) == 0
        assert count == len(await session.get_items())

    run(go())


def test_two_objects_and_several_loops_share_a_session(hub: Hub) -> None:
    one, two = OrtetSession("x", hub), OrtetSession("x", hub)
    for number in range(5):
        session = (one, two)[number % 2]
        run(session.add_items([{"role": "user", "content": str(number)}]))
    assert [item["content"] for item in run(one.get_items())] == list("01234")
    assert run(two.pop_item()) == {"role": "user", "content": "4"}
    assert len(run(one.get_items())) == 4


def test_an_erased_message_is_not_returned_again(hub: Hub) -> None:
    session = OrtetSession("x", hub)
    run(session.add_items(PAIR))
    run(session.get_items())
    session.close()
    seq = hub.get("x").messages()[-1].seq
    hub.erase("x", seqs=[seq])
    assert run(session.get_items()) == PAIR[:3]


def test_a_session_of_a_closed_hub_is_refused(store: Path) -> None:
    with ortet.open(store) as hub:
        session = OrtetSession("x", hub)
        run(session.add_items(PAIR))
    with pytest.raises(Invalid, match="closed"):
        run(session.get_items())
    with pytest.raises(Invalid, match=r"ortet\.open"):
        OrtetSession("x", str(store))  # type: ignore[arg-type]


def test_without_the_sdk_the_error_names_the_extra_to_install() -> None:
    code = (
        "import sys; sys.modules['agents'] = None\n"
        "from ortet.errors import Unsupported\n"
        "try:\n import ortet.integrations.openai_agents\n"
        "except Unsupported as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install "ortet[openai-agents]"' in done.stdout


def test_a_long_conversation_is_committed_at_intervals(hub: Hub) -> None:
    session = OrtetSession("x", hub)
    items: list[Any] = [{"role": "user", "content": str(number)} for number in range(600)]
    for start in range(0, 600, 60):
        run(session.add_items(items[start : start + 60]))
    assert [commit.message for commit in hub.log("x")] == ["of a conversation"] * 2
    for number in (599, 598):
        assert run(session.pop_item()) == items[number]
    assert run(session.get_items()) == items[:598]
    run(session.create_branch_from_turn(300, "one"))
    assert run(session.get_items()) == items[:299]


def test_an_unknown_session_option_is_refused_at_once(hub: Hub) -> None:
    with pytest.raises(Invalid, match="'bugdet' is no option of a session: give one of budget,"):
        OrtetSession("s", hub, bugdet={"tokens": 5})
    OrtetSession("s", hub, budget={"tokens": 5}, goal="talk")
