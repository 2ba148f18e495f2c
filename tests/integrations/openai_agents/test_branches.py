from __future__ import annotations

import asyncio
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from agents import Runner
from tests.fixtures.waiting import WAIT, eventually
from tests.integrations.openai_agents.model import agent

import ortet
from ortet.errors import Conflict, Invalid, NotFound
from ortet.hub.hub import Hub
from ortet.integrations.openai_agents import OrtetSession

ITEMS: list[Any] = [{"role": "user", "content": "again"}, {"role": "user", "content": "and more"}]


def run(call: Any) -> Any:
    return asyncio.run(call)


def talked(hub: Hub, turns: int = 3) -> OrtetSession:
    session, (sky, _) = OrtetSession("chat", hub), agent()
    for number in range(turns):
        result = run(Runner.run(sky, f"question {number}", session=session))
        run(session.store_run_usage(result))
    return session


def users(session: OrtetSession, branch: str | None = None) -> list[str]:
    items = run(session.get_items(branch_id=branch))
    return [item["content"] for item in items if item.get("role") == "user"]


def test_a_branch_goes_on_from_before_a_turn(hub: Hub) -> None:
    session = talked(hub)
    assert run(session.create_branch_from_turn(2, "try again")) == "try again"
    assert session.branch == "try again"
    assert users(session) == ["question 0"]
    run(Runner.run(agent()[0], "another", session=session))
    assert users(session) == ["question 0", "another"]
    assert users(session, "main") == ["question 0", "question 1", "question 2"]
    run(session.switch_to_branch("main"))
    assert len(users(session)) == 3
    told = {one["branch_id"]: one for one in run(session.list_branches())}
    assert {key: (one["user_turns"], one["message_count"]) for key, one in told.items()} == {
        "main": (3, 18),
        "try again": (2, 12),
    }
    assert [one["branch_id"] for one in told.values() if one["is_current"]] == ["main"]
    fork = hub.get(told["try again"]["session"])
    assert fork.internals.row.parent == hub.get("chat").id
    assert [m.content for m in fork.messages() if m.role == "user"] == ["question 0", "another"]


def test_branches_of_branches_and_another_process(hub: Hub, store: Path) -> None:
    session = talked(hub)
    first = run(session.create_branch_from_turn(3))
    second = run(session.create_branch_from_content("QUESTION 1", "deep"))
    assert (first, second) == ("branch_from_turn_3", "deep")
    assert users(session) == ["question 0"]
    assert run(session.create_branch_from_turn(1)) == "branch_from_turn_1"
    run(session.switch_to_branch("main"))
    assert run(session.create_branch_from_turn(3)) == "branch_from_turn_3_2"
    session.close()
    with ortet.open(store) as other:
        again = OrtetSession("chat", other, branch="deep")
        assert users(again) == ["question 0"]
        assert len(run(again.list_branches())) == 5
        assert other.verify().problems == []


def test_a_missing_turn_or_branch_is_refused(hub: Hub) -> None:
    session = talked(hub, 1)
    with pytest.raises(NotFound, match="no turn 2"):
        run(session.create_branch_from_turn(2))
    with pytest.raises(NotFound, match="no user said"):
        run(session.create_branch_from_content("never"))
    with pytest.raises(NotFound, match="no branch 'x'"):
        run(session.switch_to_branch("x"))
    bad: Any
    for bad in (" ", 5):
        with pytest.raises(Invalid):
            run(session.create_branch_from_turn(1, bad))
    with pytest.raises(Conflict, match="main"):
        run(session.create_branch_from_turn(1, "main"))
    with pytest.raises(Invalid):
        run(session.create_branch_from_turn(0))
    assert session.branch == "main"


def test_a_deleted_branch_is_closed_and_its_name_stays_taken(hub: Hub) -> None:
    session = talked(hub, 1)
    run(session.create_branch_from_turn(1, "one"))
    run(session.add_items([{"role": "user", "content": "there"}]))
    with pytest.raises(Conflict, match="force"):
        run(session.delete_branch("one"))
    run(session.delete_branch("one", force=True))
    assert session.branch == "main"
    assert [one["branch_id"] for one in run(session.list_branches())] == ["main"]
    assert [m.content for m in hub.get("chat/one").messages()] == ["there"]
    with pytest.raises(Conflict, match="already"):
        run(session.create_branch_from_turn(1, "one"))
    with pytest.raises(NotFound):
        run(session.delete_branch("one"))
    with pytest.raises(Invalid, match="main"):
        run(session.delete_branch("main"))


def test_clear_session_removes_the_branches_of_the_session(hub: Hub) -> None:
    session = talked(hub, 2)
    with hub.session("chat") as s:
        (fork,) = s.fork(1)  # another's
        fork.pause()
    run(session.create_branch_from_turn(2, "one"))
    run(session.clear_session())
    assert (session.branch, run(session.get_items())) == ("main", [])
    assert [one["branch_id"] for one in run(session.list_branches())] == ["main", "1"]
    assert len(users(session, "1")) == 2


@pytest.mark.parametrize("elsewhere", [False, True])
def test_an_object_on_a_cleared_branch_goes_on_in_the_cleared_session(
    hub: Hub, store: Path, elsewhere: bool
) -> None:
    session = talked(hub, 2)
    run(session.create_branch_from_turn(2, "one"))
    with ortet.open(store) if elsewhere else nullcontext(hub) as other:
        second = OrtetSession("chat", other, branch="one")
        assert users(second) == ["question 0"]
        run(session.clear_session())
        assert (users(second), second.branch) == ([], "main")
        run(second.add_items([{"role": "user", "content": "anew"}]))
        assert users(session) == users(second) == ["anew"]
        assert [one["branch_id"] for one in run(second.list_branches())] == ["main"]


def test_a_cleared_branch_is_left_by_every_call(hub: Hub) -> None:
    def on_cleared_branch() -> OrtetSession:
        name = f"b{next(numbers)}"
        run(session.create_branch_from_turn(1, name))
        second = OrtetSession("chat", hub, branch=name)
        run(session.clear_session())
        run(session.add_items(ITEMS))
        return second

    numbers, session = count(), talked(hub, 1)
    assert run(on_cleared_branch().pop_item()) == ITEMS[-1]
    assert run(on_cleared_branch().get_items(1)) == ITEMS[-1:]
    assert len(run(on_cleared_branch().get_conversation_turns())) == 2
    assert run(on_cleared_branch().create_branch_from_turn(1, "next")) == "next"
    second = on_cleared_branch()
    run(second.clear_session())
    assert run(session.get_items()) == []


def test_items_that_wait_for_a_branch_while_it_is_cleared_go_to_main(hub: Hub, store: Path) -> None:
    session = talked(hub, 1)
    run(session.create_branch_from_turn(1, "one"))
    conversation = session._conversation
    with ortet.open(store) as other:
        second = OrtetSession("chat", other, branch="one")
        adding = Thread(target=lambda: run(second.add_items(ITEMS)))
        with conversation.pool.writing("chat/one"):
            adding.start()
            branch = conversation.pool._open_sessions["chat/one"]
            eventually(lambda: branch.is_requested)
            conversation.close_branch("chat/one", cleared=True)
        adding.join(WAIT)
        assert second.branch == "main"
    run(session.switch_to_branch("main"))
    assert users(session) == ["question 0", "again", "and more"]


def test_an_object_on_a_deleted_branch_is_told_to_switch(hub: Hub) -> None:
    session = talked(hub, 1)
    run(session.create_branch_from_turn(1, "one"))
    second = OrtetSession("chat", hub, branch="one")
    run(session.delete_branch("one", force=True))
    for call in (second.get_items, second.pop_item, second.get_conversation_turns):
        with pytest.raises(NotFound, match="'one' was deleted"):
            run(call())
    with pytest.raises(NotFound, match="'one' was deleted"):
        run(second.add_items(ITEMS))
    run(second.switch_to_branch("main"))
    assert users(second) == ["question 0"]


def test_turns_tools_and_usage_are_counted_by_branch(hub: Hub) -> None:
    session = talked(hub)
    turns = run(session.get_conversation_turns())
    assert [(turn["turn"], turn["content"]) for turn in turns] == [
        (1, "question 0"),
        (2, "question 1"),
        (3, "question 2"),
    ]
    assert [t["turn"] for t in run(session.find_turns_by_content("QUESTION 1"))] == [2]
    assert run(session.get_tool_usage()) == [("look", 2, turn) for turn in (1, 2, 3)]
    types = run(session.get_conversation_by_turns())[2]
    assert [one["type"] for one in types] == [
        *("user", "function_call", "function_call"),
        *("function_call_output", "function_call_output", "assistant"),
    ]
    run(session.create_branch_from_turn(2, "one"))
    assert [one["user_turn_number"] for one in run(session.get_turn_usage())] == [1]
    result = run(Runner.run(agent()[0], "another", session=session))
    run(session.store_run_usage(result))
    assert [one["user_turn_number"] for one in run(session.get_turn_usage())] == [1, 2]
    assert run(session.get_session_usage("one"))["total_tokens"] == 60
    assert run(session.get_session_usage())["total_tokens"] == 4 * 30  # what they share, once
    assert hub.get("chat").accounting.spent()["tokens"] == 4 * 30


def test_a_turn_of_many_items_is_still_that_turn(hub: Hub) -> None:
    session = talked(hub, 1)
    result = run(Runner.run(agent()[0], "long", session=session))
    notes: list[Any] = [{"role": "assistant", "content": str(number)} for number in range(70)]
    run(session.add_items(notes))
    run(session.store_run_usage(result))
    assert run(session.get_turn_usage(2))["total_tokens"] == 30
    run(session.store_run_usage(result))
    assert run(session.get_session_usage())["total_tokens"] == 60
    assert run(session.pop_item()) == notes[-1]
    assert len(run(session.get_items())) == 12 + 69
