"""What sessions share: published when it is committed on the main line, and under the commit."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fixtures.talk import texts

from ortet.config.environment import open_hub
from ortet.errors import Invalid, NotFound
from ortet.hub.hub import Hub
from ortet.sessions.history import navigation
from ortet.testing.clock import ManualClock


def _publish_nothing(upto: int | None = None) -> None: ...


class TestPublishing:
    def test_agent_fact_is_published_at_commit(self, hub: Hub) -> None:
        with hub.session("a") as a, hub.session("b") as b:
            a.learn("the build needs node 22", scope="agent")
            a.learn("only mine")
            assert texts(a) == ["the build needs node 22", "only mine"]
            assert texts(b) == []
            a.commit("known")
            assert texts(b) == ["the build needs node 22"]
            (fact,) = b.facts()
            assert (fact.scope, fact.source and fact.source.session) == ("agent", a.id)
            assert fact.source
            (event,) = a.events(fact.source.seq - 1, fact.source.seq)
            assert event.data["text"] == fact.text
            assert texts(a) == ["the build needs node 22", "only mine"]

    def test_agent_fact_is_not_visible_to_another_agent(self, hub: Hub) -> None:
        with hub.session("a", agent="one") as a, hub.session("b", agent="two") as b:
            a.learn("secret of one", scope="agent")
            a.commit()
            assert texts(b) == []

    def test_user_and_project_facts_are_visible_only_in_sessions_with_that_scope(
        self, hub: Hub
    ) -> None:
        with hub.session("a", agent="one") as a:
            a.learn("likes tea", scope="user:ann")
            a.learn("uses uv", scope="project:web")
            a.commit()
        with hub.session("b", agent="two", scopes=["user:ann"]) as b:
            assert texts(b) == ["likes tea"]
        with hub.session("b", agent="two") as b:  # it stays so
            assert texts(b) == ["likes tea"]
        with hub.session("c", agent="two") as c:
            assert texts(c) == []

    def test_each_shared_fact_is_published_once(self, hub: Hub) -> None:
        with hub.session("a") as a:
            a.learn("one", scope="agent")
            a.commit()
            a.learn("two", scope="agent")
            a.commit()
            a.say("user", "nothing new")
            a.commit()
        (known,) = hub.internals.services.scopes.all()
        assert [e.data["text"] for e in known.events(hub.internals.services)] == [
            "one",
            "two",
        ]

    def test_facts_left_unpublished_by_a_kill_are_published_at_the_next_open(
        self, store: Path
    ) -> None:
        with open_hub(store) as hub:
            a = hub.session("a")
            a.learn("one", scope="agent")
            a.internals.navigation.publish = _publish_nothing  # type: ignore[method-assign]
            a.commit()
            a.internals.pipeline.writer.close()
            a.internals.lifecycle.abandon()
            with hub.session("b") as b:
                assert texts(b) == []
            with hub.session("a"), hub.session("b") as b:
                assert texts(b) == ["one"]

    @pytest.mark.parametrize(
        "scope",
        ["", "agents", "user:", "user: x", "team:x", "user:a b", "user:a\0b", "user:\ud800", 3],
    )
    def test_unknown_scope_is_refused(self, hub: Hub, scope: str) -> None:
        with hub.session("a") as a:
            if scope == "":
                assert a.facts(scope=scope) == []
                return
            with pytest.raises(Invalid):
                a.learn("x", scope=scope)

    def test_closing_a_session_publishes_its_facts_and_episode(self, hub: Hub) -> None:
        a = hub.session("a")
        a.say("user", "we moved to Lisbon")
        a.learn("lives in Lisbon", scope="agent")
        a.finish("moved")
        with hub.session("b") as b:
            assert texts(b) == ["lives in Lisbon"]
            (episode,) = b.memory.episodes()
            assert (episode.session, episode.outcome, episode.cause) == ("a", "moved", "closed")
            assert "Lisbon" in episode.summary


class TestForgetting:
    def test_others_forget_it_when_that_is_committed(self, hub: Hub) -> None:
        with hub.session("a") as a, hub.session("b") as b:
            id_ = a.learn("port 3000", scope="agent")
            a.commit()
            b.forget(id_, why="it is 8080 now")
            assert texts(b) == []
            assert texts(a) == ["port 3000"]
            b.commit()
            assert texts(a) == []
            gone = a.memory.fact(id_)
            assert (gone.text, gone.why) == ("port 3000", "it is 8080 now")
            with pytest.raises(NotFound):
                a.forget(id_)

    def test_superseding_a_shared_fact_replaces_it_for_all_sessions(self, hub: Hub) -> None:
        with hub.session("a") as a, hub.session("b") as b:
            old = a.learn("port 3000", about="port", scope="agent")
            a.commit()
            new = b.learn("port 8080", about="port", scope="agent", supersedes=old)
            b.commit()
            assert texts(a) == ["port 8080"]
            assert [f.id for f in a.memory.fact_history(new)] == [old, new]
            assert [f.id for f in a.memory.fact_history(old)] == [old, new]
            assert a.memory.fact(old).ended_by == new


class TestBranches:
    def test_facts_of_a_fork_are_published_only_after_adopt(self, hub: Hub) -> None:
        with hub.session("a") as a, hub.session("b") as b:
            a.say("user", "go")
            (kid,) = a.fork(1)
            kid.learn("learned on a branch", scope="agent")
            kid.commit()
            assert texts(kid) == ["learned on a branch"]
            assert texts(a) == texts(b) == []
            a.adopt(kid)
            assert texts(a) == texts(b) == ["learned on a branch"]

    def test_merge_publishes_facts_of_the_fork(self, hub: Hub) -> None:
        with hub.session("a") as a, hub.session("b") as b:
            a.say("user", "go")
            (kid,) = a.fork(1)
            kid.learn("from a kid", scope="agent", about="kid", confidence=0.5)
            a.merge(kid)
            assert texts(b) == ["from a kid"]
            assert b.facts()[0].confidence == 0.5

    def test_a_fork_believes_what_was_believed_when_it_began(self, hub: Hub) -> None:
        with hub.session("a") as a, hub.session("b") as b:
            b.learn("early", scope="agent")
            b.commit()
            a.say("user", "go")
            (kid,) = a.fork(1)
            b.learn("late", scope="agent")
            b.commit()
            assert texts(a) == ["early", "late"]
            assert texts(kid) == ["early"]
            (grandchild,) = kid.fork(1)
            assert texts(grandchild) == ["early"]
            kid.memory.refresh()
            assert texts(kid) == ["early", "late"]

    def test_a_restore_believes_what_was_believed_then(self, hub: Hub) -> None:
        with hub.session("a") as a, hub.session("b") as b:
            id_ = b.learn("early", scope="agent")
            b.commit()
            a.say("user", "go")
            then = a.commit("then")
            b.forget(id_)
            b.learn("late", scope="agent")
            b.commit()
            assert texts(a) == ["late"]
            a.restore(then.oid)
            assert texts(a) == ["early"]
            assert a.commit("again").oid == then.oid
            a.learn("mine", scope="agent")
            a.commit()  # who tells something knows what others told
            assert texts(a) == ["late", "mine"]
            assert texts(b) == ["late", "mine"]

    def test_facts_of_a_removed_fork_are_never_published(self, hub: Hub) -> None:
        with hub.session("a") as a:
            a.say("user", "go")
            (kid,) = a.fork(1)
            kid.learn("nobody hears of it", scope="agent")
            kid.commit()
            kid.pause()
            hub.remove(kid.id)
            assert texts(a) == []

    def test_commit_without_own_changes_is_the_head_despite_new_shared_facts(
        self, hub: Hub
    ) -> None:
        with hub.session("a") as a, hub.session("b") as b:
            a.say("user", "go")
            head = a.commit()
            b.learn("x", scope="agent")
            b.commit()
            assert a.commit().oid == head.oid

    def test_session_with_files_also_restores_its_view_of_shared_facts(
        self, hub: Hub, tmp_path: Path
    ) -> None:
        (tmp_path / "work").mkdir()
        with hub.session("a", workspace=tmp_path / "work", engine="folder") as a:
            a.learn("x", scope="agent")
            first = a.commit()
            a.say("user", "more")
            with hub.session("b") as b:
                b.learn("y", scope="agent")
                b.commit()
            a.commit()
            assert texts(a) == ["x", "y"]
            a.restore(first.oid)
            assert texts(a) == ["x"]


class TestTime:
    def test_facts_can_be_queried_by_knowledge_time_and_validity_time(self, store: Path) -> None:
        clock, day = ManualClock(), 86400
        monday = clock.now_ns() // 10**9
        with open_hub(store, clock=clock) as hub, hub.session("a") as a:
            old = a.learn("the office is in Rome", since=monday - day)
            tuesday = clock.now_ns()
            clock.advance(day * 10**9)
            a.learn("the office is in Oslo", since=monday - 2 * day, supersedes=old)
            assert [f.text for f in a.facts(at=tuesday, on=monday)] == ["the office is in Rome"]
            assert [f.text for f in a.facts(on=monday)] == ["the office is in Oslo"]
            assert a.facts(on=monday - 3 * day) == []
            assert a.facts(at=monday - day) == []

    def test_fact_that_ends_before_it_begins_is_refused(self, hub: Hub) -> None:
        with hub.session("a") as a, pytest.raises(Invalid):
            a.learn("x", since=20, until=10)


class TestStore:
    def test_shared_facts_survive_sweep_export_and_import(
        self, store: Path, tmp_path: Path
    ) -> None:
        with open_hub(store) as hub:
            with hub.session("a") as a:
                a.learn("x", scope="agent")
                a.commit()
                a.learn("y", scope="agent")
                commit = a.commit("both")
            hub.sweep()
            hub.verify()
            hub.export(commit.oid, tmp_path / "bundle")
        with open_hub(tmp_path / "other") as hub:
            with hub.session("local") as local:
                local.learn("known here", scope="agent")
                local.commit()
            hub.import_(tmp_path / "bundle")
            hub.verify()
            with hub.session("guest") as s:
                s.restore(commit.oid)
                assert texts(s) == ["x", "y"]
                s.learn("z", scope="agent")
                s.commit()
                assert sorted(texts(s)) == ["known here", "x", "y", "z"]
            with hub.session("local") as local:
                assert sorted(texts(local)) == ["known here", "x", "y", "z"]
            hub.sweep()
            hub.verify()

    def test_facts_shared_in_another_store_come_back_with_an_import(
        self, store: Path, tmp_path: Path
    ) -> None:
        with open_hub(store) as hub, hub.session("s") as s:
            s.learn("told here", scope="agent")
            s.commit()
            s.say("user", "go")
            commit = s.commit()
            hub.export(commit.oid, tmp_path / "there")
        with open_hub(tmp_path / "other") as hub:
            hub.import_(tmp_path / "there")
            with hub.session("s") as s, hub.session("t") as t:
                s.restore(commit.oid)
                s.learn("told there", scope="agent")
                s.commit()
                t.learn("told by another", scope="agent")
                t.commit()
                s.say("user", "home")
                commit = s.commit()
            hub.export(commit.oid, tmp_path / "back")
        with open_hub(store) as hub:
            hub.import_(tmp_path / "back")
            with hub.session("s") as s:
                s.restore(commit.oid)
                s.learn("home again", scope="agent")
                s.commit()
            with hub.session("t") as t:
                assert texts(t) == ["told here", "told there", "told by another", "home again"]
            hub.verify()

    def test_erasing_a_fact_event_also_erases_its_shared_copy(self, store: Path) -> None:
        with open_hub(store) as hub:
            with hub.session("a") as a:
                a.learn("pigeon 4711", scope="agent")
                a.say("user", "hello")
                a.commit()
                seq = next(e.seq for e in a.events() if e.kind == "fact")
            hub.erase(a.id, seqs=[seq])
            with hub.session("b") as b:
                assert texts(b) == []
            hub.verify()
        assert not any(
            b"pigeon 4711" in path.read_bytes() for path in store.rglob("*") if path.is_file()
        )

    def test_a_person_is_erased_everywhere(self, store: Path) -> None:
        with open_hub(store) as hub:
            with hub.session("a") as a:
                a.learn("ann has a cat", scope="user:ann")
                a.learn("bob has a dog", scope="user:bob")
                a.commit()
            hub.erase(user="ann")
            with hub.session("c", scopes=["user:ann", "user:bob"]) as c:
                assert texts(c) == ["bob has a dog"]
            hub.verify()

    def test_erase_of_a_user_removes_facts_that_came_with_a_bundle(
        self, store: Path, tmp_path: Path
    ) -> None:
        with open_hub(store) as hub:
            with hub.session("a") as a:
                a.learn("ann has pigeon 4711", scope="user:ann")
                a.commit()
            with hub.session("b", scopes=["user:ann"]) as b:  # which has heard of it
                b.say("user", "hello")
                commit = b.commit()
            hub.export(commit.oid, tmp_path / "bundle")
        with open_hub(tmp_path / "other") as hub:
            hub.import_(tmp_path / "bundle")
            with hub.session("c") as c:
                c.restore(commit.oid)
                assert texts(c) == ["ann has pigeon 4711"]
            assert len(hub.erase(user="ann").events) == 1
            with hub.session("c") as c:
                assert texts(c) == []
            hub.verify()
        files = [path for path in (tmp_path / "other").rglob("*") if path.is_file()]
        assert not any(b"pigeon 4711" in path.read_bytes() for path in files)

    def test_fact_events_of_earlier_releases_can_be_read(self, hub: Hub) -> None:
        with hub.session("a") as a:
            id_ = a.learn("x")
            a.internals.pipeline.add(
                "fact", {"id": id_, "gone": True}
            )  # as releases before memory told it
            assert a.facts() == []
            assert list(a.internals.state.past) == []


class TestContradictions:
    def test_contradictions_lists_facts_about_one_subject_that_differ(self, hub: Hub) -> None:
        with hub.session("a") as a:
            old = a.learn("the server listens on port 3000", about="server")
            a.learn("the server is written in Go", about="server")
            new = a.learn("the server listens on port 8080", about="server")
            (found,) = a.memory.contradictions()
            assert (found.ours.id, found.theirs.id) == (old, new)
            a.forget(old)
            assert a.memory.contradictions() == []

    def test_contradictions_are_found_without_a_subject(self, hub: Hub) -> None:
        with hub.session("a") as a:
            a.learn("the cache is enabled")
            a.learn("cats are animals")
            a.learn("the cache is disabled")
            assert len(a.memory.contradictions()) == 1

    def test_facts_valid_at_different_times_do_not_contradict(self, hub: Hub) -> None:
        with hub.session("a") as a:
            a.learn("the office is in Rome", about="office", until="2025-01-01")
            a.learn("the office is in Oslo", about="office", since="2025-01-01")
            assert a.memory.contradictions() == []

    def test_contradictions_accepts_a_custom_detector(self, hub: Hub) -> None:
        with hub.session("a") as a:
            a.learn("one", about="x")
            a.learn("two", about="x")
            found = a.memory.contradictions(lambda new, known: [claim.id for claim in known])
            assert [(c.ours.text, c.theirs.text) for c in found] == [("one", "two")]


class TestBeside:
    def test_a_secret_that_was_told_keeps_nobody_from_committing(
        self, store: Path, tmp_path: Path
    ) -> None:
        with open_hub(store, environ={"HOME": str(tmp_path)}) as hub:
            with hub.session("a") as a, hub.session("b") as b:
                a.learn("the token is pelican-4711-heron", scope="agent")
                a.commit()
                hub.vault.put("TOKEN", "pelican-4711-heron")
                b.say("user", "hello")
                b.commit()
            assert hub.verify()

    def test_erase_of_a_message_also_removes_facts_learned_from_it(self, hub: Hub) -> None:
        with hub.session("s") as s:
            said = s.say("user", "my number is 4711")
            s.learn("her number is 4711", source=said)
            s.learn("she is friendly")
            s.commit()
        hub.erase(s.id, seqs=[said.seq])
        assert [fact.text for fact in hub.get("s").facts()] == ["she is friendly"]

    def test_adopting_session_sees_the_newest_shared_facts(
        self, hub: Hub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with hub.session("a") as a, hub.session("b") as b:
            a.say("user", "go")
            (kid,) = a.fork(1)
            kid.say("user", "on")
            b.learn("news", scope="agent")
            b.commit()
            # as if it were killed when it has just moved
            monkeypatch.setattr(navigation, "set_shared_memory", lambda *_: None)
            a.adopt(kid)
            assert texts(a) == ["news"]
