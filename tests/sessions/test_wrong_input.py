"""What a session cannot keep is refused before it is recorded, so that the rest stays readable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ortet.errors import Conflict, Invalid, NotFound, Refused
from ortet.hub.hub import Hub

VERBS: dict[str, Callable[[Any], Any]] = {
    "think": lambda s: s.think(5),
    "note": lambda s: s.note(5, 5),
    "ask": lambda s: s.ask(None),
    "plan of numbers": lambda s: s.plan([1, 2]),
    "plan of letters": lambda s: s.plan("go"),
    "plan of nothing": lambda s: s.plan(None),
    "learn": lambda s: s.learn(5),
    "learn about": lambda s: s.learn("x", about=None),
    "lesson": lambda s: s.lesson(None),
    "decide": lambda s: s.decide(5),
    "decide why": lambda s: s.decide("x", why=None),
    "decide instead of": lambda s: s.decide("x", instead_of=[1]),
    "decide instead of letters": lambda s: s.decide("x", instead_of="yz"),
    "act why": lambda s: s.act(len, "a", why=None),
    "act key": lambda s: s.act(len, "a", key=5),
    "act name": lambda s: s.act(len, "a", name=5),
    "request why": lambda s: s.actions.request_approval("go", why=None),
    "spend": lambda s: s.spend(usd=1, model=5),
    "model call": lambda s: s.accounting.model_call(None, "m", usage={"usd": 1}),
    "commit": lambda s: s.commit(5),
    "pause": lambda s: s.pause(5),
    "finish": lambda s: s.finish(None),
}


class TestText:
    @pytest.mark.parametrize("verb", VERBS)
    def test_argument_that_is_not_text_is_refused_and_not_recorded(
        self, hub: Hub, verb: str
    ) -> None:
        with hub.session("s") as s:
            before = [event.seq for event in s.events()]
            with pytest.raises(Invalid) as caught:
                VERBS[verb](s)
            assert caught.value.kind == "not_text"
            assert [event.seq for event in s.events()] == before
            s.commit("as it was")
        with hub.session("s") as s:
            s.briefing()
            s.effects()
        assert hub.bill() == []

    def test_goal_that_is_not_text_is_refused(self, hub: Hub) -> None:
        with pytest.raises(Invalid) as caught:
            hub.session("s", goal=5)  # type: ignore[arg-type]
        assert caught.value.kind == "not_text"
        assert hub.sessions() == []

    @pytest.mark.parametrize("ttl", ["5", -1, True, float("nan")])
    def test_note_with_a_bad_ttl_is_refused(self, hub: Hub, ttl: Any) -> None:
        with hub.session("s") as s, pytest.raises(Invalid) as caught:
            s.note("k", 1, ttl=ttl)
        assert caught.value.kind == "bad_ttl"

    @pytest.mark.parametrize("step", ["a", 1.0, True, 9])
    def test_advance_to_a_bad_step_is_refused(self, hub: Hub, step: Any) -> None:
        with hub.session("s") as s:
            s.plan(["a", "b"])
            with pytest.raises(Invalid) as caught:
                s.advance(step)
            assert caught.value.kind == "bad_step" and s.step == 0


class TestBeside:
    def test_reason_or_author_that_is_not_text_is_refused(self, hub: Hub) -> None:
        with hub.session("s") as s:
            asked = s.actions.request_approval("go?")
            wrong: list[Callable[[], Any]] = [
                lambda: hub.comment("s", "hi", by=5),  # type: ignore[arg-type]
                lambda: hub.approve("s", asked, why=5),  # type: ignore[arg-type]
                lambda: hub.governance.hold("s", None),  # type: ignore[arg-type]
                lambda: hub.archive("s", 5),  # type: ignore[arg-type]
            ]
            for verb in wrong:
                with pytest.raises(Invalid) as caught:
                    verb()
                assert caught.value.kind == "not_text"
            assert s.actions.approvals()[0].state == "asked"

    @pytest.mark.parametrize("name", ["", "\udcff", "a\nb"])
    def test_budget_and_spend_with_a_bad_counter_name_are_refused(
        self, hub: Hub, name: str
    ) -> None:
        counters: dict[str, Any] = {name: 5}
        with hub.session("s") as s:
            with pytest.raises(Invalid) as caught:
                s.budget(**counters)
            assert caught.value.kind == "bad_budget"
            with pytest.raises(Invalid) as caught:
                s.spend(**counters)
            assert caught.value.kind == "bad_amount"


class TestUnknown:
    def test_answer_to_an_unknown_question_is_not_found(self, hub: Hub) -> None:
        with hub.session("s") as s:
            asked = s.ask("who?")
            with pytest.raises(NotFound) as caught:
                s.answer(asked[:6], "me")
            assert caught.value.kind == "no_question"
            s.answer(asked, "me")
            assert s.conversation.questions() == []

    def test_forgetting_or_superseding_a_fact_twice_is_refused(self, hub: Hub) -> None:
        with hub.session("s") as s:
            fact = s.learn("x")
            s.forget(fact)
            with pytest.raises(NotFound, match="believed no more, it was forgotten") as caught:
                s.forget(fact)
            assert caught.value.kind == "no_fact"
            new = s.learn("z", supersedes=s.learn("y"))
            old = s.memory.fact(new).supersedes
            with pytest.raises(NotFound, match=f"superseded by {new}"):
                s.learn("w", supersedes=old)

    def test_empty_fact_is_refused(self, hub: Hub) -> None:
        with hub.session("s") as s:
            for text in ("", " \n"):
                with pytest.raises(Invalid, match="says nothing"):
                    s.learn(text)
            assert s.facts() == []


class TestWhichSession:
    def test_hub_verbs_accept_a_session_id_name_or_agent_and_name(self, hub: Hub) -> None:
        with hub.session("s") as s, hub.session("s", agent="ann") as other:
            hub.comment(s, "hello")
            for word in (s.id, "s", "default/s"):
                assert hub.get(word).id == s.id
                hub.comment(word, "hello")
            assert hub.get("ann/s").id == other.id
            asked = s.actions.request_approval("go?")
            assert hub.approve("s", asked, by="ann").state == "given"
        assert hub.audit("s").name == "s"
        hub.governance.hold("s")
        with pytest.raises(Refused):
            hub.erase("s")
        hub.governance.release("s")
        assert hub.diff_runs("s", "default/s").first is None
        hub.archive("s")
        assert hub.get("s").status == "archived"
        hub.unarchive("s")
        hub.erase("ann/s")
        hub.remove("ann/s")
        assert [row.id for row in hub.sessions()] == [s.id]

    def test_unknown_or_invalid_session_reference_is_refused(self, hub: Hub) -> None:
        for word in ("nobody", "ann/", "", "a b"):
            with pytest.raises(NotFound) as caught:
                hub.get(word)
            assert caught.value.kind == "no_session"
        with pytest.raises(Invalid) as wrong:
            hub.comment(5, "hi")  # type: ignore[arg-type]
        assert wrong.value.kind == "bad_session"

    def test_opening_a_session_twice_in_one_process_is_refused(self, hub: Hub) -> None:
        with hub.session("s"), pytest.raises(Refused, match="open in this process"):
            hub.session("s")


def test_closed_session_is_still_closed_after_archive_and_unarchive(hub: Hub) -> None:
    with hub.session("s") as s:
        s.say("user", "hi", user="ann")
        s.finish()
    hub.archive("s")
    hub.erase(user="ann")  # which writes another bundle
    assert hub.unarchive("s").status == "closed"
    with pytest.raises(Conflict):
        hub.session("s")


def test_a_hold_wins_over_an_archive(hub: Hub) -> None:
    with hub.session("s") as s:
        s.say("user", "hi")
    hub.governance.hold("s", "incident 7")
    with pytest.raises(Refused) as caught:
        hub.archive("s")
    assert caught.value.kind == "on_hold"
    assert hub.get("s").status == "paused"
