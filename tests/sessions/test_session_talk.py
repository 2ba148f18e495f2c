"""Conversations of sessions: compacted without loss, cut to fit, whole after a crash."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures import forked

from ortet.config.environment import open_hub
from ortet.errors import Conflict, Invalid, NotFound, Refused
from ortet.hub.hub import Hub
from ortet.journal.conversation.compaction import extract_summary
from ortet.journal.conversation.tool_calls import LOST_RESULT_TEXT
from ortet.journal.events import Event
from ortet.journal.state.records import Message

CALLS = [{"id": "c1", "type": "function", "function": {"name": "pay", "arguments": "{}"}}]


def killed(store: Path, code: str, fault: str = "") -> int:
    code = f"import ortet, os, signal\ns = ortet.open({str(store)!r}).session('s')\n{code}"
    env = {**os.environ, **({"ORTET_FAULT": fault} if fault else {})}
    return forked.run([sys.executable, "-c", code], check=False, env=env).returncode


class TestCompact:
    def test_compact_keeps_the_last_messages_and_the_others_stay_readable(self, hub: Hub) -> None:
        with hub.session("s") as s:
            for number in range(50):
                s.say("user", f"m{number}")
            first = s.messages()[0].seq
            loss = s.compact(keep_last=20)
            assert loss is not None
            assert (loss.first, loss.count) == (first, 30)
            assert [m.content for m in s.messages()] == [f"m{n}" for n in range(30, 50)]
            assert [m.content for m in s.conversation.dropped()] == [f"m{n}" for n in range(30)]
            assert s.conversation.dropped(loss.seq) == s.conversation.dropped()
            assert "m0" in loss.summary
            assert s.conversation.compactions() == [loss]
            assert s.compact(keep_last=20) is None

    def test_second_compaction_covers_the_first_summary_and_persists(self, store: Path) -> None:
        given: list[list[Message]] = []

        def summarise(messages: list[Message]) -> str:
            given.append(messages)
            return f"summary {len(given)}"

        with open_hub(store) as hub, hub.session("s") as s:
            s.say("system", "be kind")
            for number in range(9):
                s.say("user", f"m{number}")
            s.compact(4, summarise)
            s.commit()
            s.say("user", "m9")
            s.compact(2, summarise)
            assert [m.content for m in given[0]] == ["be kind", *(f"m{n}" for n in range(5))]
            assert given[1][0].extra == {"summary": True}
            assert "summary 1" in given[1][0].content
            (kid,) = s.fork(1)
            kid.say("user", "mine")
            assert [m.content for m in kid.context()][-1] == "mine"
        with open_hub(store) as hub, hub.session("s") as s:
            assert [m.content for m in s.messages()] == ["m8", "m9"]
            assert [m.content for m in s.conversation.dropped()] == [
                "be kind",
                *(f"m{n}" for n in range(8)),
            ]
            later, earlier = s.conversation.compactions()
            assert [m.content for m in s.conversation.dropped(later.seq)] == ["m5", "m6", "m7"]
            assert (later.before, later.summary) == (earlier.seq, "summary 2")
            said = [(m.role, m.content) for m in s.context()]
            assert said[0] == ("system", "be kind")
            assert "summary 2" in said[1][1]
            assert said[2:] == [("user", "m8"), ("user", "m9")]
            hub.verify()

    def test_compact_keeps_goal_plan_facts_notes_and_effects(self, hub: Hub) -> None:
        with hub.session("s", goal="g", budget={"usd": 5}) as s:
            s.plan(["a", "b"])
            s.learn("fact")
            s.decide("this", why="that")
            s.ask("may I?")
            s.note("k", "v")
            s.act(len, "abc")
            s.spend(usd=1)
            for number in range(5):
                s.say("user", f"m{number}")

            def durable() -> list[Any]:
                core = s.internals.state.core
                return [
                    (
                        core.goal,
                        core.plan,
                        core.limits,
                        s.accounting.spent(),
                        s.conversation.notes(),
                    ),
                    (
                        s.facts(),
                        s.conversation.decisions(),
                        s.conversation.questions(),
                        s.effects(),
                    ),
                ]

            before = durable()
            s.compact(0)
            assert s.messages() == []
            assert durable() == before

    def test_a_call_is_not_parted_from_its_result(self, hub: Hub) -> None:
        with hub.session("s") as s:
            s.say("user", "pay")
            s.say("assistant", None, tool_calls=CALLS)
            s.say("tool", "done", tool_call_id="c1")
            s.say("assistant", "paid")
            s.compact(2)
            assert [m.role for m in s.messages()] == ["assistant", "tool", "assistant"]
            s.say("assistant", None, tool_calls=CALLS)
            s.say("user", "hurry")
            s.compact(0)  # the result is still to come
            assert [m.role for m in s.messages()] == ["assistant", "user"]

    def test_wrong_values_change_nothing(self, hub: Hub) -> None:
        with hub.session("s") as s:
            s.say("user", "x")
            s.say("user", "y")
            before = len(list(s.events()))
            for wrong in (-1, True, 1.5):
                with pytest.raises(Invalid):
                    s.compact(wrong)  # type: ignore[arg-type]
            with pytest.raises(Invalid) as caught:
                s.compact(1, lambda _: 7)  # type: ignore[arg-type, return-value]
            assert caught.value.kind == "bad_summary"
            with pytest.raises(Invalid):
                s.compact(1, lambda _: "x" * (1 << 21))
            with pytest.raises(ZeroDivisionError):
                s.compact(1, lambda _: str(1 / 0))
            with pytest.raises(NotFound):
                s.conversation.dropped(1)
            assert len(list(s.events())) == before

    def test_concurrent_compaction_is_refused(self, hub: Hub) -> None:
        with hub.session("s") as s:
            for number in range(9):
                s.say("user", f"m{number}")

            def meanwhile(messages: list[Message]) -> str:
                s.compact(5)
                return "late"

            with pytest.raises(Conflict):
                s.compact(2, meanwhile)
            assert len(s.messages()) == 5

    @pytest.mark.parametrize(("point", "left"), [("before", 9), ("after", 2)])
    def test_killed_compaction_is_complete_or_absent(
        self, store: Path, point: str, left: int
    ) -> None:
        code = "for n in range(9): s.say('user', f'm{n}')\n"
        code += "s.compact(2)"
        # the 1st append is the first message: to open writes in a transaction of its own
        assert killed(store, code, f"journal.{point}-append:kill:10") == -9
        with open_hub(store) as hub, hub.session("s") as s:
            assert len(s.messages()) == left
            dropped = [m.content for m in s.conversation.dropped()]
            assert dropped + [m.content for m in s.messages()] == [f"m{n}" for n in range(9)]

    def test_the_plain_summary_is_bounded(self) -> None:
        messages = [Message(n, "user", f"message {n} " + "w" * 500) for n in range(1000)]
        text = extract_summary(messages)
        assert len(text) <= 2000
        assert text.startswith("- user: message 0 ")
        assert "message 999" in text
        assert "more)" in text
        again = extract_summary([Message(1, "user", text, extra={"summary": True}), *messages[:3]])
        assert len(again) <= 2000
        assert "message 2" in again
        assert extract_summary([]) == ""


class TestDangling:
    @pytest.mark.parametrize(
        ("said", "role"),
        [
            (f"s.say('assistant', None, tool_calls={CALLS!r})", "tool"),
            (
                "s.say('assistant', [{'type': 'tool_use', 'id': 'c1', 'name': 'pay', 'input': {}},"
                " {'type': 'tool_use', 'id': 'c2', 'name': 'pay', 'input': {}}])\n"
                "s.say('user', [{'type': 'tool_result', 'tool_use_id': 'c2', 'content': 'ok'}])",
                "user",
            ),
        ],
    )
    def test_a_call_cut_off_by_a_crash_is_closed(self, store: Path, said: str, role: str) -> None:
        code = f"s.say('user', 'pay')\n{said}\nos.kill(os.getpid(), signal.SIGKILL)"
        assert killed(store, code) == -9
        with open_hub(store) as hub, hub.session("s") as s:
            last = s.messages()[-1]
            assert (last.role, last.extra["synthetic"]) == (role, True)
            if role == "tool":
                assert (last.content, last.extra["tool_call_id"]) == (LOST_RESULT_TEXT, "c1")
            else:
                (part,) = last.content
                assert (part["tool_use_id"], part["is_error"]) == ("c1", True)
            count = len(s.messages())
        with open_hub(store) as hub, hub.session("s") as s:
            assert len(s.messages()) == count  # closed once

    def test_the_real_result_may_come_later(self, store: Path) -> None:
        with open_hub(store) as hub, hub.session("s") as s:
            s.say("assistant", None, tool_calls=CALLS)
            s.commit()
        with open_hub(store) as hub, hub.session("s") as s:
            assert [m.content for m in s.messages()] == [None, LOST_RESULT_TEXT]
            s.say("user", "wait for it")
            s.say("tool", "paid", tool_call_id="c1")
            assert [m.content for m in s.messages()] == [None, "wait for it", "paid"]
            for count in range(5):
                assert s.messages(last=count) == s.messages()[max(0, 3 - count) :]
            assert [m.content for m in s.context()] == [None, "paid", "wait for it"]

    def test_tool_call_with_a_result_is_not_closed_at_open(self, store: Path) -> None:
        with open_hub(store) as hub, hub.session("s") as s:
            s.say("assistant", None, tool_calls=CALLS)
            s.say("tool", "paid", tool_call_id="c1")
        with open_hub(store) as hub, hub.session("s") as s:
            assert [m.content for m in s.messages()] == [None, "paid"]


class TestLast:
    def test_messages_with_last_returns_only_the_last_messages(self, hub: Hub) -> None:
        with hub.session("s") as s:
            assert s.messages(last=3) == []
            for number in range(200):
                s.say("user", f"m{number}")
                s.note("n", number)
            assert [m.content for m in s.messages(last=2)] == ["m198", "m199"]
            assert s.messages(last=500) == s.messages()
            s.compact(keep_last=5)
            assert s.messages(last=50) == s.messages()

    def test_messages_with_last_reads_only_the_newest_events(self, hub: Hub) -> None:
        with hub.session("s", durability="group") as s:
            for number in range(3000):
                s.say("user", f"m{number}")
        view = hub.get(s.id)
        read = list[tuple[int, int | None]]()
        events = view.internals.context.events

        def watched(after: int = 0, upto: int | None = None) -> Iterator[Event]:
            read.append((after, upto))
            return events(after, upto)

        view.internals.context.events = watched  # type: ignore[method-assign]
        assert view.messages(last=1)[0].content == "m2999"
        assert len(read) == 1
        assert read[0][0] > 2900

    @pytest.mark.parametrize("count", [-1, 1.5, True, "2"])
    def test_messages_with_a_bad_count_is_refused(self, hub: Hub, count: Any) -> None:
        with hub.session("s") as s, pytest.raises(Invalid):
            s.messages(last=count)


class TestContext:
    def test_context_of_a_long_conversation_keeps_the_newest_messages_within_the_limit(
        self, hub: Hub
    ) -> None:
        with hub.session("s") as s:
            for number in range(600):
                s.say("user", f"m{number} " + "w" * 100)
            context = s.context("what now?", tokens=500)
            assert context.tokens <= 500
            assert context.left_out
            assert context.messages[-1].content.startswith("m599")
            assert s.context(tokens=10**6).messages == s.messages()
            assert hub.get(s.id).context(tokens=500) == context

    def test_context_of_an_empty_session_is_empty(self, hub: Hub) -> None:
        with hub.session("s") as s:
            assert list(s.context()) == []
            with pytest.raises(Invalid):
                s.context(tokens=0)


class TestBriefing:
    def test_briefing_after_a_crash_lists_goal_step_failures_and_unsettled_effects(
        self, store: Path
    ) -> None:
        code = """
s.internals.pipeline.add("goal", {"text": "make the suite green"})
s.plan(["reproduce", "fix", "verify"]); s.advance()
s.say("user", "the login test fails")
try:
    s.act(lambda: 1 / 0, name="build", why="is it whole?")
except ZeroDivisionError:
    s.lesson("divide by something")
s.decide("patch the lexer", why="smallest change", instead_of=["rewrite"])
s.ask("may I?")
s.act(lambda: os.kill(os.getpid(), signal.SIGKILL), name="pay", key="k", replay="once")
"""
        assert killed(store, code) == -9
        with open_hub(store) as hub, hub.session("s") as s:
            told = s.briefing()
            assert told.data["goal"] == "make the suite green"
            assert told.data["current_step"] == "fix"
            assert [deed["name"] for deed in told.data["unsettled"]] == ["pay"]
            assert told.data["failed"][0]["error"] == "ZeroDivisionError: division by zero"
            assert [lesson["text"] for lesson in told.data["lessons"]] == ["divide by something"]
            assert told.data["messages"][-1]["content"] == "the login test fails"
            assert str(told) == told.markdown
            assert hub.get(s.id).briefing() == told
            s.actions.settle(told.data["unsettled"][0]["id"], "paid")
            assert s.briefing().data["unsettled"] == []

    def test_briefing_lists_an_unsettled_effect_after_a_restore(self, store: Path) -> None:
        code = "s.say('user', 'x'); s.commit('one')\n"
        code += "s.act(lambda: os.kill(os.getpid(), signal.SIGKILL), name='pay', key='k')"
        assert killed(store, code) == -9
        with open_hub(store) as hub, hub.session("s") as s:
            first = s.head
            assert first is not None
            s.restore(first.oid)
            assert [deed["name"] for deed in s.briefing().data["unsettled"]] == ["pay"]

    def test_briefing_shows_remaining_budget_and_compaction_summary(self, hub: Hub) -> None:
        with hub.session("s", budget={"usd": 5}) as s:
            s.spend(usd=1.5)
            for number in range(30):
                s.say("user", f"m{number}")
            s.compact(2, lambda _: "they counted")
            told = s.briefing()
            assert "usd: 3.5 left" in told.markdown
            assert "they counted" in told.markdown
            assert [m["content"] for m in told.data["messages"]] == ["m28", "m29"]

    def test_briefing_lists_pending_approvals(self, hub: Hub) -> None:
        with hub.session("s") as s:
            with pytest.raises(Refused):
                s.act(len, "abc", name="deploy", approve="it is friday")
            (waiting,) = s.briefing().data["approvals"]
            assert waiting["why"] == "it is friday"
            hub.approve(s.id, waiting["id"], by="ann")
            assert s.briefing().data["approvals"] == []


def test_messages_larger_than_one_object_between_commits_are_kept(store: Path) -> None:
    """More than one object can hold."""
    with open_hub(store) as hub:
        with hub.session("s") as s:
            for number in range(20):
                s.say("user", f"{number} " + os.urandom(450_000).hex())
            s.commit()
            before = s.messages()
        hub.verify()
        hub.governance.retain()
        assert hub.get("s").messages() == before
