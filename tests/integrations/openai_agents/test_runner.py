from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest
from agents import Agent, RunConfig, Runner, SessionSettings
from tests.fixtures.waiting import WAIT
from tests.fixtures.workers import StartScript as Start
from tests.integrations.openai_agents.model import Scripted, agent, call, look, text

import ortet
from ortet.errors import Refused
from ortet.hub.hub import Hub
from ortet.integrations.openai_agents import OrtetSession
from ortet.integrations.openai_agents.items import OPEN_CALL_TEXT


def run(call: Any) -> Any:
    return asyncio.run(call)


def line_of(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline().strip()


def ids(items: list[Any], type_: str) -> list[str]:
    return [item["call_id"] for item in items if item.get("type") == type_]


def test_an_agent_with_tools_remembers(hub: Hub) -> None:
    session, (sky, model) = OrtetSession("chat", hub), agent()
    for number in range(3):
        result = run(Runner.run(sky, f"question {number}", session=session))
        assert result.final_output == f"answer {number + 1}: sun in B"
    items = run(session.get_items())
    assert [item for item in items if item.get("role") == "user"] == [
        {"role": "user", "content": f"question {number}"} for number in range(3)
    ]
    assert ids(items, "function_call") == ids(items, "function_call_output")
    assert len(items) == 3 * 6
    assert len(model.asked[-1]) == 3 * 6 - 1  # all of it but the last answer
    roles = [message.role for message in hub.get("chat").messages()]
    assert roles == ["user", "assistant", "tool", "tool", "assistant"] * 3


def test_a_handoff_to_another_agent_is_stored_with_its_result(hub: Hub) -> None:
    def second(said: list[Any]) -> list[Any]:
        return [text("from the other")]

    other = Agent(name="other", model=Scripted(second))
    model = Scripted(lambda said: [call("h1", "transfer_to_other")])
    first = Agent(name="first", model=model, handoffs=[other])
    session = OrtetSession("chat", hub)
    result = run(Runner.run(first, "who?", session=session))
    assert (result.final_output, result.last_agent) == ("from the other", other)
    items = run(session.get_items())
    assert ids(items, "function_call") == ids(items, "function_call_output") == ["h1"]


def test_no_item_limit_separates_a_call_from_its_result(hub: Hub) -> None:
    session, (sky, _) = OrtetSession("chat", hub), agent()
    for number in range(3):
        run(Runner.run(sky, f"question {number}", session=session))
    before = run(session.get_items())
    for limit in range(1, len(before) + 1):
        assert run(session.get_items(limit)) == before[-limit:]
        asked = Scripted(lambda said: [text("fine")])
        reader = Agent(name="reader", model=asked, tools=[look])
        config = RunConfig(session_settings=SessionSettings(limit=limit))
        run(Runner.run(reader, "and?", session=session, run_config=config))
        (given,) = asked.asked
        assert ids(given, "function_call") == ids(given, "function_call_output")
        for _ in range(2):
            run(session.pop_item())
    assert run(session.get_items()) == before


@pytest.mark.slow
def test_two_processes_take_turns_in_one_session(hub: Hub, store: Path, start: Start) -> None:
    session, (sky, _) = OrtetSession("chat", hub), agent()
    worker = start("chat", "turns")
    assert worker.stdin is not None
    for number in range(0, 6, 2):
        result = run(Runner.run(sky, f"question {number}", session=session))
        assert result.final_output == f"answer {number + 1}: sun in B"
        worker.stdin.write(f"question {number + 1}\n")
        worker.stdin.flush()
        assert line_of(worker.stdout) == f"answer {number + 2}: sun in B"
    assert len(run(session.get_items())) == 6 * 6
    assert hub.get("chat").accounting.spent()["tokens"] == 3 * 30


@pytest.mark.slow
def test_processes_that_add_at_once_lose_nothing(hub: Hub, start: Start) -> None:
    workers = [start("chat", "add", who, "30") for who in "ab"]
    assert [worker.wait() for worker in workers] == [0, 0]
    items = run(OrtetSession("chat", hub).get_items())
    groups = [items[at : at + 3] for at in range(0, len(items), 3)]
    for question, made, result in groups:  # none came between
        id_ = question["content"].replace(" ", "")
        assert (made["call_id"], result["call_id"]) == (id_, id_)
    for who in "ab":
        mine = [int(g[0]["content"][2:]) for g in groups if g[0]["content"].startswith(who)]
        assert mine == list(range(30))
    assert hub.verify().problems == []


def test_acknowledged_items_survive_sigkill_whole(hub: Hub, start: Start) -> None:
    worker = start("chat", "add", "a", "100000")
    told = [line_of(worker.stdout) for _ in range(20)]
    worker.send_signal(signal.SIGKILL)
    worker.wait(WAIT)
    assert worker.stdout is not None
    told += [line for line in worker.stdout.read().splitlines() if line.startswith("a ")]
    session = OrtetSession("chat", hub)
    items = run(session.get_items())
    assert len(items) % 3 == 0  # each whole, or not at all
    said = [item["content"] for item in items if item.get("role") == "user"]
    assert said[: len(told)] == told
    assert len(said) <= len(told) + 1  # the one that was under way
    run(session.add_items([{"role": "user", "content": "on"}]))
    assert len(run(session.get_items())) == len(items) + 1


def test_a_call_cut_off_by_a_crash_is_answered_as_lost(hub: Hub, start: Start) -> None:
    worker = start("chat", "half")
    assert line_of(worker.stdout) == "half"
    worker.send_signal(signal.SIGKILL)
    worker.wait(WAIT)
    session = OrtetSession("chat", hub)
    lost = {"type": "function_call_output", "call_id": "lost", "output": OPEN_CALL_TEXT}
    assert run(session.get_items())[-1] == lost
    asked = Scripted(lambda said: [text("I see")])
    run(Runner.run(Agent(name="a", model=asked), "and now?", session=session))
    (given,) = asked.asked
    assert [item.get("call_id") for item in given] == [None, "lost", "lost", None]
    items = run(session.get_items())
    assert items[2] == lost
    roles = [message.role for message in hub.get("chat").messages()]
    assert roles == ["user", "assistant", "tool", "user", "assistant"]
    result: Any = {"type": "function_call_output", "call_id": "lost", "output": "sun"}
    run(session.add_items([result]))  # it came after all
    outputs = [item["output"] for item in run(session.get_items()) if "output" in item]
    assert outputs == ["sun"]


def test_an_open_call_is_answered_as_lost_only_for_other_objects(hub: Hub) -> None:
    session = OrtetSession("chat", hub)
    made: Any = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    run(session.add_items([made]))
    assert run(session.get_items()) == [made]
    assert len(run(OrtetSession("chat", hub).get_items())) == 2


def test_usage_is_spent_of_the_budget(hub: Hub) -> None:
    session, (sky, _) = OrtetSession("chat", hub, budget={"tokens": 100}), agent()
    for number in range(2):
        result = run(Runner.run(sky, f"question {number}", session=session))
        run(session.store_run_usage(result))
        run(session.store_run_usage(result))  # which is the same again
    view = hub.get("chat")
    assert view.accounting.spent() == {
        "requests": 4.0,
        "input_tokens": 40.0,
        "output_tokens": 20.0,
        "total_tokens": 60.0,
        "tokens": 60.0,
    }
    assert view.accounting.budget_left() == {"tokens": 40.0}
    used = run(session.get_turn_usage(2))
    assert (used["requests"], used["total_tokens"]) == (2, 30)
    assert used["input_tokens_details"]["cached_tokens"] == 0
    assert [one["user_turn_number"] for one in run(session.get_turn_usage())] == [1, 2]
    assert run(session.get_turn_usage(9)) == {}
    assert run(session.get_session_usage()) == {
        "requests": 4,
        "input_tokens": 40,
        "output_tokens": 20,
        "total_tokens": 60,
        "total_turns": 2,
    }
    assert run(OrtetSession("none", hub).get_session_usage()) is None
    result = run(Runner.run(sky, "question 3", session=session))
    run(session.store_run_usage(result))
    result = run(Runner.run(sky, "question 4", session=session))
    with pytest.raises(Refused, match="budget"):
        run(session.store_run_usage(result))
    assert len(run(session.get_items())) == 4 * 6  # which is there all the same
    for _ in range(6):
        run(session.pop_item())
    assert hub.get("chat").accounting.spent()["tokens"] == 120.0  # no rewind refunds anything
    assert [one["user_turn_number"] for one in run(session.get_turn_usage())] == [1, 2, 3]


def test_a_summary_keeps_the_context_short(hub: Hub, store: Path) -> None:
    from agents.memory.session import is_openai_responses_compaction_aware_session

    from ortet.integrations.openai_agents import OrtetCompactingSession

    assert not is_openai_responses_compaction_aware_session(OrtetSession("x", hub))
    make: Callable[..., Any] = lambda messages: f"{len(messages)} messages"  # noqa: E731
    session = OrtetCompactingSession("chat", hub, above=12, keep_last=6, summarise=make)
    assert is_openai_responses_compaction_aware_session(session)
    sky, model = agent()
    for number in range(6):
        model.ids = number % 2 == 0  # the Runner asks only where responses have ids
        run(Runner.run(sky, f"question {number}", session=session))
    view = hub.get("chat")
    assert len(view.conversation.compactions()) >= 2
    assert len(view.messages()) <= 12
    items = run(session.get_items())
    assert items[0]["content"].startswith("Summary of what was said before")
    assert ids(items, "function_call") == ids(items, "function_call_output")
    kept = [*view.conversation.dropped(), *view.messages()]
    said = [message.content for message in kept if message.role == "user"]
    assert said == [f"question {number}" for number in range(6)]
    run(session.run_compaction({"force": True}))
    assert len(hub.get("chat").messages()) <= 6
    with ortet.open(store) as other:
        assert other.verify().problems == []
