"""Memory as people look at it: as Markdown, between commits, and where a fact is from."""

from __future__ import annotations

from ortet.hub.hub import Hub
from ortet.sessions.memory.report import event_at, markdown, origin_of
from ortet.sessions.reader import SessionReader


def where(view: SessionReader, id_: str) -> tuple[str, int, str] | None:
    """Session, event and what it says."""
    origin = origin_of(view, view.memory.fact(id_))
    event = event_at(view, origin) if origin is not None else None
    if origin is None or event is None:
        return None
    text = event.data.get("content") or event.data.get("text")
    return origin.session, origin.seq, str(text)


class TestWhereAFactIsFrom:
    def test_origin_of_a_fact_is_the_named_source_event(self, hub: Hub) -> None:
        with hub.session("s") as s:
            said = s.say("user", "I moved to Oslo")
            id_ = s.learn("lives in Oslo", source=said)
            assert where(s, id_) == (s.id, said.seq, "I moved to Oslo")

    def test_origin_of_a_fact_without_a_source_is_its_own_event(self, hub: Hub) -> None:
        with hub.session("s") as s:
            id_ = s.learn("one")
            found = where(s, id_)
            assert found is not None and found[2] == "one"
            s.learn("two", supersedes=id_)
            assert where(s, id_) == found

    def test_origin_of_a_shared_fact_is_the_event_of_the_other_session(self, hub: Hub) -> None:
        with hub.session("a") as a, hub.session("b") as b:
            said = a.say("user", "we deploy on Mondays")
            id_ = a.learn("deploys are on Mondays", scope="agent", source=said)
            other = a.learn("tests come first", scope="agent")
            a.commit()
            assert where(b, id_) == (a.id, said.seq, "we deploy on Mondays")
            found = where(b, other)
            assert found is not None and found[0::2] == (a.id, "tests come first")
            assert b.forget(id_, why="no more").data["id"] == id_
            assert where(b, id_) == (a.id, said.seq, "we deploy on Mondays")

    def test_origin_is_found_on_a_timeline_left_by_a_restore(self, hub: Hub) -> None:
        with hub.session("a") as a, hub.session("b") as b:
            before = a.commit("before")
            said = a.say("user", "it rains")
            id_ = a.learn("it rains", scope="agent", source=said)
            a.commit("told")
            a.restore(before.oid)
            a.say("user", "another thing at this number")
            assert where(b, id_) == (a.id, said.seq, "it rains")

    def test_shared_fact_of_a_removed_session_has_no_origin_event(self, hub: Hub) -> None:
        with hub.session("b") as b:
            with hub.session("a") as a:
                id_ = a.learn("it rains", scope="agent", source=a.say("user", "drops"))
                a.commit()
            hub.remove(a.id)
            fact = b.memory.fact(id_)
            origin = origin_of(b, fact)
            assert fact.text == "it rains"
            assert origin is not None and event_at(b, origin) is None


def test_memory_markdown_lists_goal_facts_decisions_and_episodes(hub: Hub) -> None:
    with hub.session("s", goal="be green") as s:
        s.learn("# no heading\nof ours", about="style", confidence=0.5, since="2026-01-01")
        s.learn("shared", scope="project:shop")
        s.decide("go left", why="near")
        s.milestone("went left", outcome="done")
        text = markdown(s)
    assert "Goal: be green" in text
    assert "- # no heading of ours (confidence 0.5, since 2026-01-01 00:00)" in text
    assert "## What this session knows\n\n### style\n" in text
    assert "## What everyone of project shop knows\n" in text
    assert "- go left, because near\n" in text
    assert "> went left\n" in text


def test_memory_diff_lists_learned_and_forgotten_facts_and_decisions(hub: Hub) -> None:
    with hub.session("s") as s:
        kept, wrong = s.learn("kept"), s.learn("wrong")
        old = s.commit("old")
        s.forget(wrong, why="measured")
        new = s.learn("new", scope="agent")
        s.decide("so be it")
        now = s.commit("now")
        found = hub.memory.diff(old, now)
        assert [one.id for one in found.learned] == [new]
        assert [(one.id, one.why) for one in found.given_up] == [(wrong, "measured")]
        assert [one.text for one in found.decisions] == ["so be it"]
        back = hub.memory.diff(now, old)
        assert [one.id for one in back.learned] == [wrong]
        assert [one.id for one in back.given_up] == [new]
        assert hub.memory.diff(now, now).same
        assert s.memory.fact(kept).text == "kept"


def test_fact_with_extreme_validity_dates_can_be_recalled(hub: Hub) -> None:
    """It used to leave an index that answered nothing any more."""
    with hub.session("s") as s:
        s.learn("gold is heavy", since="0001-01-01", until="9999-12-31")
        assert s.recall("gold", on="2400-01-01") == []  # as far as ns go
        assert s.recall("gold", on="2200-01-01")[0].text == "gold is heavy"
        assert s.recall("gold", at="9999-01-01")[0].text == "gold is heavy"
        assert s.recall("gold", at="1500-01-01") == []


def test_facts_with_past_lists_forgotten_facts(hub: Hub) -> None:
    with hub.session("s") as s:
        one, two = s.learn("one"), s.learn("two", about="x")
        s.forget(one, why="no")
        assert [fact.id for fact in s.facts()] == [two]
        assert [(fact.id, fact.why) for fact in s.facts(past=True)] == [(one, "no"), (two, "")]
        assert [fact.id for fact in s.facts(past=True, about="x")] == [two]
