"""Episodes: written when a session closes, compacts or reaches a milestone, with their events."""

from __future__ import annotations

import pytest

from ortet.errors import Invalid
from ortet.hub.hub import Hub
from ortet.journal.state.records import Message


def test_a_milestone_tells_what_happened_since_the_last(hub: Hub) -> None:
    with hub.session("s", goal="ship") as s:
        s.say("user", "please fix the login", user="ann")
        s.decide("patch the lexer", why="small")
        s.lesson("mocks hid it")
        first = s.milestone(outcome="fixed", importance=0.9)
        s.say("user", "now the docs")
        second = s.milestone("docs were written")
        one, two = s.memory.episodes()
        assert [one.id, two.id] == [first, second]
        assert (one.outcome, one.importance, one.cause) == ("fixed", 0.9, "milestone")
        assert one.participants == ["default", "ann"]
        for part in ("Goal: ship", "patch the lexer", "mocks hid it", "fix the login"):
            assert part in one.summary
        events = list(s.events(one.first - 1, one.last))
        assert "please fix the login" in [e.data.get("content") for e in events]
        assert two.summary == "docs were written"
        assert two.first > one.last
        said = [e for e in s.events(two.first - 1, two.last) if e.kind == "message"]
        assert [e.data["content"] for e in said] == ["now the docs"]


def test_milestone_without_new_events_writes_no_episode(hub: Hub) -> None:
    with hub.session("s") as s:
        assert s.milestone() == ""
        s.say("user", "x")
        assert s.milestone()
        assert s.milestone() == ""
        assert len(s.memory.episodes()) == 1


def test_closing_a_session_writes_an_episode(hub: Hub) -> None:
    s = hub.session("s")
    s.plan(["one"])
    s.say("user", "do it")
    s.advance()
    s.finish()
    (episode,) = hub.get(s.id).memory.episodes()
    assert (episode.cause, episode.outcome) == ("closed", "done")


def test_pausing_a_session_writes_no_episode(hub: Hub) -> None:
    with hub.session("s") as s:
        s.say("user", "x")
    assert hub.get("s").memory.episodes() == []


def test_compaction_writes_an_episode_with_its_summary(hub: Hub) -> None:
    with hub.session("s") as s:
        for number in range(10):
            s.say("user", f"message {number}")
        past = s.compact(keep_last=2, summarise=lambda messages: f"{len(messages)} said")
        assert past is not None
        (episode,) = s.memory.episodes()
        assert (episode.summary, episode.cause) == ("8 said", "compacted")
        assert (episode.first, episode.last) == (past.first, past.last)
        assert len(s.messages()) == 2


def test_milestone_accepts_a_custom_summariser_that_returns_text(hub: Hub) -> None:
    def mine(messages: list[Message]) -> str:
        return f"they said {messages[0].content}"

    with hub.session("s") as s:
        s.say("user", "hi")
        s.milestone(summarise=mine)
        assert s.memory.episodes()[0].summary == "they said hi"
        s.say("user", "again")
        with pytest.raises(Invalid, match="not text"):
            s.milestone(summarise=lambda _: 3)  # type: ignore[arg-type, return-value]


def test_other_sessions_see_an_episode_after_its_commit(hub: Hub) -> None:
    with hub.session("a") as a, hub.session("b") as b:
        a.say("user", "the migration went wrong")
        a.milestone("migration failed", outcome="failed")
        assert b.memory.episodes() == []
        a.commit()
        (episode,) = b.memory.episodes(outcome="failed")
        assert (episode.session, episode.summary) == ("a", "migration failed")
        assert episode.source
        assert episode.source.session == a.id
        assert b.memory.episodes(session="c") == []
        assert b.recall("migration")[0].text == "migration failed"
        assert len(a.memory.episodes()) == 1


def test_episodes_are_filtered_by_time(hub: Hub) -> None:
    with hub.session("a") as a:
        a.say("user", "x")
        a.milestone("x")
        (episode,) = a.memory.episodes()
        assert a.memory.episodes(since=episode.time) == [episode]
        assert a.memory.episodes(since=episode.time + 1) == []
        assert a.memory.episodes(until=episode.began) == []
        assert a.memory.episodes(until=episode.time + 1) == [episode]


def test_hub_lists_episodes_of_all_sessions_filtered_by_agent_or_session(hub: Hub) -> None:
    for name, agent in (("one", "x"), ("two", "y")):
        s = hub.session(name, agent=agent)
        s.say("user", name)
        s.finish()
    assert [e.session for e in hub.memory.episodes()] == ["one", "two"]
    assert [e.session for e in hub.memory.episodes(agent="y")] == ["two"]
    assert [e.session for e in hub.memory.episodes(session="x/one")] == ["one"]


def test_merge_writes_one_episode_with_the_fork_as_source(hub: Hub) -> None:
    with hub.session("s") as s:
        s.say("user", "x")
        (kid,) = s.fork(1)
        kid.say("user", "elsewhere")
        kid.milestone("went elsewhere")
        kid.learn("it is nice there")
        kid.commit()
        assert s.memory.episodes() == []  # what happens on a branch is the branch's own
        s.merge(kid)
        (episode,) = s.memory.episodes()
        assert (episode.cause, episode.session) == ("merged", kid.name)
        assert "it is nice there" in episode.summary
        assert episode.source
        assert episode.source.session == kid.id
