"""learn, recall, facts, episodes, milestone, context and memory through a real process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.commands import Commit, Ortet

from ortet.config.environment import open_hub

SAID = "the login test fails when the clock jumps"


@pytest.fixture
def here(ortet: Ortet, tmp_path: Path) -> Path:
    """A place with a session `s` of its store, in which something was said."""
    ortet("session", "new", "s", "--goal", "be green", cwd=tmp_path)
    ortet("say", "-s", "s", SAID, cwd=tmp_path)
    return tmp_path


def learn(ortet: Ortet, cwd: Path, *words: str, session: str = "s") -> str:
    """The id of a fact."""
    id_: str = ortet.json("learn", "-s", session, *words, cwd=cwd)["id"]
    return id_


def texts(ortet: Ortet, cwd: Path, *words: str) -> list[str]:
    return [fact["text"] for fact in ortet.json("facts", "ls", *words, cwd=cwd)]


class TestLearn:
    def test_learn_stores_every_option_of_a_fact(self, ortet: Ortet, here: Path) -> None:
        (said,) = ortet.json("journal", "s", "--kind", "message", cwd=here)
        old = learn(ortet, here, "tests run by hand")
        given = ["--about", "testing", "--scope", "project:shop", "--confidence", "0.8"]
        given += ["--since", "2026-01-31", "--until", "90d", "--source", str(said["seq"])]
        new = learn(ortet, here, "tests run on push", *given, "--supersedes", old[-8:])
        (fact,) = ortet.json("facts", "s", cwd=here)
        assert (fact["id"], fact["text"]) == (new, "tests run on push")
        assert (fact["about"], fact["scope"], fact["confidence"]) == (
            *("testing", "project:shop"),
            0.8,
        )
        assert fact["since"] == 1_769_817_600 * 10**9
        assert 80 < (fact["until"] - fact["time"]) / 86_400e9 < 91
        assert fact["source"]["seq"] == said["seq"]
        assert fact["supersedes"] == old

    def test_learn_reads_stdin_and_stores_lessons(self, ortet: Ortet, here: Path) -> None:
        ortet("learn", "-s", "s", cwd=here, stdin="zwei\nZeilen 🎉\n".encode())
        ortet("learn", "-s", "s", "-", "--lesson", cwd=here, stdin=b"bitter")
        one, two = ortet.json("facts", "s", cwd=here)
        assert (one["text"], one["lesson"]) == ("zwei\nZeilen 🎉\n", False)
        assert (two["text"], two["lesson"]) == ("bitter", True)

    def test_a_shared_fact_reaches_other_sessions_at_the_next_commit(
        self, ortet: Ortet, here: Path
    ) -> None:
        ortet("session", "new", "other", "--scope", "project:shop", cwd=here)
        done = ortet("learn", "-s", "s", "closed on Sundays", "--scope", "project:shop", cwd=here)
        assert done.out.endswith(": closed on Sundays\n")
        assert "others are told at the next commit" in done.err
        assert texts(ortet, here, "other") == []
        told = ortet("learn", "-s", "s", "all know", "--scope", "agent", "--commit", cwd=here)
        assert told.err == ""
        assert set(texts(ortet, here, "other")) == {"closed on Sundays", "all know"}
        assert texts(ortet, here, "other", "--scope", "agent") == ["all know"]

    @pytest.mark.parametrize(
        ("words", "code", "kind"),
        [
            (["x", "--scope", "everyone"], 2, "bad_scope"),
            (["x", "--confidence", "2"], 2, "bad_value"),
            (["x", "--since", "soon"], 2, "bad_time"),
            (["x", "--since", "2026-02-01", "--until", "2026-01-01"], 2, "bad_time"),
            (["x", "--until", "999999w"], 2, "bad_time"),
            (["x", "--source", "999"], 4, "no_event"),
            (["x", "--source", "0"], 2, "bad_count"),
            (["x", "--supersedes", "zzzz"], 4, "no_fact"),
            (["x", "--lesson", "--confidence", "0.5"], 2, "bad_usage"),
            ([""], 2, "bad_usage"),
        ],
    )
    def test_invalid_learn_arguments_are_refused(
        self, ortet: Ortet, here: Path, words: list[str], code: int, kind: str
    ) -> None:
        assert ortet.kind("learn", "-s", "s", *words, cwd=here, code=code) == kind
        assert ortet.json("facts", "s", cwd=here) == []

    def test_learn_and_facts_outside_of_a_session_are_refused(
        self, ortet: Ortet, here: Path
    ) -> None:
        assert ortet.kind("learn", "x", cwd=here, code=4) == "no_session"
        assert ortet.kind("facts", cwd=here, code=4) == "no_session"


class TestFacts:
    def test_facts_without_a_verb_lists_the_facts(self, ortet: Ortet, proj: Path) -> None:
        ortet("session", "new", "show", "-w", ".", cwd=proj)  # called like a verb of it
        id_ = learn(ortet, proj, "one", "--about", "history", session="show")
        line = f"{id_[-8:]}  fact  session  history  one\n"
        for words in ([], ["ls"], ["-s", "show"], ["ls", "show"], ["--about", "history"]):
            assert ortet("facts", *words, cwd=proj).out == line, words
        assert ortet("facts", "-q", cwd=proj).out == ""
        assert ortet("facts", "--json", "--about", "none", cwd=proj).data == []
        for words in (["--help"], ["-h"], ["--json", "--help"]):
            assert "forget" in ortet("facts", *words, cwd=proj).out

    def test_facts_filters_by_belief_time_and_validity_time(self, ortet: Ortet, here: Path) -> None:
        old = learn(ortet, here, "in Rome", "--since", "2026-01-01", "--until", "2026-03-01")
        (fact,) = ortet.json("facts", "s", cwd=here)
        ortet("facts", "forget", old[-8:], "-s", "s", "--why", "it is Oslo", cwd=here)
        learn(ortet, here, "in Oslo")
        assert texts(ortet, here, "s") == ["in Oslo"]
        assert texts(ortet, here, "s", "--past") == ["in Rome", "in Oslo"]
        then = f"{fact['time'] // 1000 / 1e6 + 1e-5:.6f}"  # in the seconds before it was forgotten
        assert texts(ortet, here, "s", "--at", then) == ["in Rome"]
        assert texts(ortet, here, "s", "--at", "1d") == []
        assert texts(ortet, here, "s", "--past", "--on", "2026-02-01") == ["in Rome", "in Oslo"]
        assert texts(ortet, here, "s", "--past", "--on", "2026-04-01") == ["in Oslo"]

    def test_facts_show_prints_origin_validity_and_successor(
        self, ortet: Ortet, here: Path
    ) -> None:
        (said,) = ortet.json("journal", "s", "--kind", "message", cwd=here)
        source = ["--source", str(said["seq"]), "--until", "9999-12-31", "--about", "clock"]
        id_ = learn(ortet, here, "the clock jumps", *source)
        shown = ortet.json("facts", "show", id_, "-s", "s", cwd=here)
        origin = shown["origin"]
        assert (origin["name"], origin["seq"], origin["kind"]) == ("s", said["seq"], "message")
        assert (origin["text"], origin["by"]) == (SAID, "user")
        out = ortet("facts", "show", id_[:-4], "-s", "s", cwd=here).out
        assert f"event {said['seq']} of s, message by user\n            {SAID}\n" in out
        assert "about       clock\n" in out and "holds       until 2262-" in out
        new = learn(ortet, here, "it was the cache", "--supersedes", id_)
        out = ortet("facts", "show", id_, "-s", "s", cwd=here).out
        assert out.endswith(f", superseded by {new[-8:]} it was the cache\n")
        out = ortet("facts", "show", new[-8:], "-s", "s", cwd=here).out
        assert f"supersedes  {id_[-8:]} the clock jumps\n" in out

    def test_facts_show_names_the_session_that_shared_a_fact(
        self, ortet: Ortet, here: Path
    ) -> None:
        ortet("session", "new", "other", cwd=here)
        told = ["for all", "--scope", "agent", "--commit"]
        id_ = learn(ortet, here, *told, session="other")
        out = ortet("facts", "show", id_[-8:], "-s", "s", cwd=here).out
        assert "scope       agent\n" in out and " of other, fact by tester\n" in out
        ortet("session", "rm", "other", "--yes", cwd=here)
        out = ortet("facts", "show", id_[-8:], "-s", "s", cwd=here).out
        assert "which is not here any more\n" in out

    def test_erasing_a_message_removes_facts_learned_from_it(
        self, ortet: Ortet, here: Path
    ) -> None:
        (said,) = ortet.json("journal", "s", "--kind", "message", cwd=here)
        id_ = learn(ortet, here, "repeats it", "--source", str(said["seq"]))
        learn(ortet, here, "kept")
        ortet("erase", "s", "--event", str(said["seq"]), "--yes", cwd=here)
        assert SAID not in ortet("facts", "show", id_, "-s", "s", cwd=here, code=4).err
        (left,) = ortet.json("facts", "ls", "-s", "s", cwd=here)
        assert left["text"] == "kept"

    def test_facts_forget_ends_a_fact_and_history_shows_why(self, ortet: Ortet, here: Path) -> None:
        one = learn(ortet, here, "one")
        two = learn(ortet, here, "two", "--supersedes", one[-8:])
        done = ortet("facts", "forget", two[-8:], "-s", "s", "--why", "wrong", cwd=here)
        assert done.out == f"forgot {two[-8:]}: two\n"
        for id_ in (one, two):
            found = ortet.json("facts", "history", id_[-8:], "-s", "s", cwd=here)
            assert [(fact["id"], fact["why"]) for fact in found] == [(one, ""), (two, "wrong")]
            assert found[0]["ended_by"] == two
        out = ortet("facts", "history", one, "-s", "s", cwd=here).out
        assert out.splitlines()[1].endswith("two  (wrong)")
        told = ortet("--json", "facts", "forget", two, "-s", "s", cwd=here, code=4).error
        assert told["kind"] == "no_fact" and "was given up on" in told["message"]
        assert ortet.json("facts", "s", cwd=here) == []

    def test_an_ambiguous_or_unknown_fact_id_is_refused(self, ortet: Ortet, here: Path) -> None:
        ids = [learn(ortet, here, "one"), learn(ortet, here, "two")]
        start = ids[0][:4]  # of the time when they were made
        assert ortet.kind("facts", "show", start, "-s", "s", cwd=here, code=5) == "ambiguous"
        for word in ("zzzz", ids[0][-3:], "", "0" * 32):
            assert ortet.kind("facts", "show", word, "-s", "s", cwd=here, code=4) == "no_fact"
        for verb in ("forget", "history"):
            assert ortet.kind("facts", verb, "nope", "-s", "s", cwd=here, code=4) == "no_fact"


class TestRecall:
    def test_recall_finds_messages_facts_and_episodes(self, ortet: Ortet, here: Path) -> None:
        id_ = learn(ortet, here, "the clock is mocked in conftest")
        ortet("milestone", "the clock was repaired", "-s", "s", cwd=here)
        found = ortet.json("recall", "clock", "-s", "s", cwd=here)
        assert found["dense"] == ""
        by = {hit["tier"]: hit for hit in found["hits"]}
        assert by["working"]["text"] == SAID and by["working"]["role"] == "user"
        assert by["working"]["source"]["name"] == "s"
        assert by["semantic"]["id"] == id_
        assert by["episodic"]["text"] == "the clock was repaired"
        two = ("--tier", "semantic", "--tier", "episodic")
        hits = ortet.json("recall", "clock", "-s", "s", *two, cwd=here)["hits"]
        assert {hit["tier"] for hit in hits} == {"semantic", "episodic"}
        assert len(ortet.json("recall", "clock", "-s", "s", "-k", "1", cwd=here)["hits"]) == 1
        lines = ortet("recall", "clock", "-s", "s", cwd=here).out.splitlines()
        assert len(lines) == 3
        assert any(f"fact {id_[-8:]}" in line and "semantic" in line for line in lines)
        assert any(line.endswith(SAID) and "  user  " in line for line in lines)

    def test_recall_explain_shows_the_scores(self, ortet: Ortet, here: Path) -> None:
        hit, why = ortet("recall", "clock", "-s", "s", "--explain", cwd=here).out.splitlines()
        assert hit.endswith(SAID) and "words " in why and "has clock" in why
        (one,) = ortet.json("recall", "clock", "-s", "s", "--explain", cwd=here)["hits"]
        assert one["scores"]["bm25_rank"] == 1

    def test_recall_searches_the_current_or_the_requested_sessions(
        self, ortet: Ortet, proj: Path
    ) -> None:
        for name, agent in (("a", "default"), ("b", "other")):
            ortet("session", "new", name, "--agent", agent, cwd=proj)
            ortet("say", "-s", name, f"a walrus of {name}", cwd=proj)

        def found(*words: str) -> set[str]:
            hits = ortet.json("recall", "walrus", *words, cwd=proj)["hits"]
            return {hit["source"]["name"] for hit in hits}

        assert found() == {"a", "b"}  # no session works here yet
        ortet("session", "new", "w", "-w", ".", cwd=proj)
        ortet("say", "a walrus of this place", cwd=proj)
        assert found() == {"w"}
        assert found("--all") == {"a", "b", "w"}
        assert found("--agent", "other") == {"b"}
        assert found("-s", "a") == {"a"}
        for more in (["--all"], ["--agent", "other"]):
            assert ortet.kind("recall", "x", "-s", "a", *more, cwd=proj, code=2) == "bad_usage"
        assert ortet.kind("recall", "x", "-s", "none", cwd=proj, code=4) == "no_session"

    def test_recall_filters_by_time_validity_and_scope(self, ortet: Ortet, here: Path) -> None:
        old = ["gold costs ten", "--until", "2026-01-01", "--scope", "project:shop"]
        learn(ortet, here, *old, "--commit")
        learn(ortet, here, "gold costs twelve", "--since", "2026-01-01")

        def found(*words: str) -> set[str]:
            hits = ortet.json("recall", "gold", "-s", "s", *words, cwd=here)["hits"]
            return {hit["text"] for hit in hits}

        assert found() == {"gold costs ten", "gold costs twelve"}
        assert found("--on", "2025-06-01") == {"gold costs ten"}
        assert found("--on", "2026-06-01") == {"gold costs twelve"}
        assert found("--scope", "project:shop") == {"gold costs ten"}
        assert found("--at", "1d") == set() == found("--since", "2999-01-01")
        assert found("--at", "2999-01-01", "--since", "1h") == found()

    def test_recall_accepts_unusual_queries_and_refuses_bad_options(
        self, ortet: Ortet, here: Path
    ) -> None:
        ortet("say", "-s", "s", "我喜欢在北京吃烤鸭", cwd=here)
        assert "北京" in ortet("recall", "北京", "-s", "s", cwd=here).out
        for query in ("", "  ", '"', "a AND", "NEAR(", "walrus"):
            assert ortet.json("recall", query, "-s", "s", cwd=here)["hits"] == []
        none = ortet("recall", "walrus", "-s", "s", cwd=here)
        assert (none.out, none.err) == ("nothing is remembered of it\n", "")
        long = b"clock " + b"word " * 200_000
        done = ortet("--json", "recall", "-", "-s", "s", cwd=here, stdin=long)
        assert done.data["hits"][0]["text"] == SAID
        for words, kind in (
            (["-k", "0"], "bad_usage"),
            (["--tier", "long"], "bad_usage"),
            (["--at", "then"], "bad_time"),
            (["--scope", "x"], "bad_scope"),
        ):
            assert ortet.kind("recall", "x", "-s", "s", *words, cwd=here, code=2) == kind

    def test_recall_escapes_terminal_control_characters(self, ortet: Ortet, here: Path) -> None:
        ortet("say", "-s", "s", "-", cwd=here, stdin=b"zebra \x1b[2Jone\nand two\n")
        (line,) = ortet("recall", "zebra", "-s", "s", "-k", "1", cwd=here).out.splitlines()
        assert "\x1b" not in line and line.endswith("zebra \\x1b[2Jone and two")

    def test_recall_works_after_the_index_was_damaged(self, ortet: Ortet, here: Path) -> None:
        before = ortet.json("recall", "clock", "-s", "s", "--explain", cwd=here)
        for file in (ortet.store / "local" / "memory").glob("index.db*"):
            file.write_bytes(b"nonsense" * 1000)
        assert ortet.json("recall", "clock", "-s", "s", "--explain", cwd=here) == before


class TestContext:
    def test_context_prints_messages_and_memories_for_a_model(
        self, ortet: Ortet, here: Path
    ) -> None:
        learn(ortet, here, "the clock is mocked in conftest")
        asked = ("context", "the clock", "-s", "s")
        out = ortet(*asked, cwd=here).out
        assert out.startswith(f"[user]\n{SAID}\n[remembered]\n")
        assert "Goal: be green\n" in out and "- the clock is mocked in conftest\n" in out
        found = ortet.json(*asked, cwd=here)
        assert found["facts"] == ["the clock is mocked in conftest"] and found["tokens"] < 200
        chat = json.loads(ortet(*asked, "--chat", cwd=here).out)
        assert chat == ortet.json(*asked, "--chat", cwd=here)
        assert chat[0] == {"role": "user", "content": SAID}
        assert set(ortet.json(*asked, "--parts", cwd=here)) == {"system", "messages"}
        assert ortet("context", "-s", "s", cwd=here).out == f"[user]\n{SAID}\n"
        assert ortet.kind(*asked, "--chat", "--parts", cwd=here, code=2) == "bad_usage"
        few = ortet.kind("context", "-s", "s", "--tokens", "1", cwd=here, code=2)
        assert few == "too_few_tokens"


class TestEpisodes:
    def test_milestone_records_an_episode_since_the_last_one(
        self, ortet: Ortet, here: Path
    ) -> None:
        first = ["milestone", "-s", "s", "it is found", "--outcome", "done", "--importance", "0.9"]
        id_ = ortet.json(*first, cwd=here)["id"]
        again = ortet("milestone", "-s", "s", cwd=here)
        assert again.out == "nothing happened since the last one\n"
        ortet("say", "-s", "s", "it is mended", cwd=here)
        made = ortet.json("milestone", "-s", "s", "--commit", cwd=here)
        assert made["commit"] == ortet.json("session", "show", "s", cwd=here)["head"]
        one, two = ortet.json("episodes", "-s", "s", cwd=here)
        assert (one["id"], one["outcome"], one["importance"]) == (id_, "done", 0.9)
        assert "it is mended" in two["summary"] and two["first"] == one["last"] + 1
        assert ortet.json("episodes", "-s", "s", "--outcome", "done", cwd=here) == [one]
        lines = ortet("episodes", "-s", "s", cwd=here).out.splitlines()
        assert lines[0].startswith(id_[-8:]) and lines[0].endswith("done       it is found")
        bad = ("milestone", "-s", "s", "x", "--importance", "7")
        assert ortet.kind(*bad, cwd=here, code=2) == "bad_value"

    def test_episodes_filters_by_session_agent_and_time(self, ortet: Ortet, here: Path) -> None:
        ortet("milestone", "-s", "s", "of s", cwd=here)
        ortet("session", "new", "t", "--agent", "other", cwd=here)
        ortet("say", "-s", "t", "hello", cwd=here)
        ortet("finish", "t", cwd=here)

        def found(*words: str) -> list[tuple[str, str]]:
            told = ortet.json("episodes", *words, cwd=here)
            return [(one["session"], one["cause"]) for one in told]

        assert found() == found("--all") == [("s", "milestone"), ("t", "closed")]
        assert found("--agent", "other") == found("-s", "t") == [("t", "closed")]
        assert found("--since", "1h") == found() and found("--until", "1h") == []
        assert ortet.kind("episodes", "--since", "x", cwd=here, code=2) == "bad_time"


class TestMemory:
    def test_memory_export_prints_markdown(self, ortet: Ortet, here: Path) -> None:
        id_ = learn(ortet, here, "known", "--about", "things")
        out = ortet("memory", "export", "s", cwd=here).out
        assert out.startswith("# Memory of s (default)\n") and f"- known `{id_[-8:]}`\n" in out
        assert ortet("memory", "export", "-s", "s", "-o", "m.md", cwd=here).out == "s -> m.md\n"
        assert (here / "m.md").read_text() == out
        assert ortet.json("memory", "export", "s", cwd=here)["markdown"] == out
        assert "diff" in ortet("memory", cwd=here).out

    def test_memory_diff_lists_learned_and_forgotten_facts_between_commits(
        self, ortet: Ortet, proj: Path, commit: Commit
    ) -> None:
        commit("files alone")
        ortet("session", "new", "w", "-w", ".", cwd=proj)
        wrong = learn(ortet, proj, "wrong", session="w")
        old = commit("one")
        assert ortet("memory", "diff", "HEAD~1", cwd=proj).out == f"+ fact  {wrong[-8:]}  wrong\n"
        ortet("facts", "forget", wrong, "--why", "measured", cwd=proj)
        new = ortet.json("learn", "right", "--lesson", cwd=proj)["id"]
        ortet("decide", "so be it", cwd=proj)
        commit("two")
        lines = ortet("memory", "diff", old, "w", cwd=proj).out.splitlines()
        assert lines[0] == f"- fact      {wrong[-8:]}  wrong  (measured)"
        assert lines[1] == f"+ lesson    {new[-8:]}  right"
        assert lines[2].startswith("+ decision  ") and lines[2].endswith("so be it")
        found = ortet.json("memory", "diff", old, "HEAD", cwd=proj)
        assert [fact["id"] for fact in found["learned"]] == [new] and not found["same"]
        assert ortet("memory", "diff", "HEAD", cwd=proj).out == "no difference\n"
        ortet("session", "new", "bare", cwd=proj)
        assert ortet.kind("memory", "diff", "bare", cwd=proj, code=4) == "no_commit"
        assert ortet.kind("memory", "diff", "none", cwd=proj, code=4) == "no_ref"

    def test_memory_consolidate_extracts_facts_from_episodes_once(
        self, ortet: Ortet, here: Path
    ) -> None:
        ortet("say", "-s", "s", "I live in Oslo and I prefer tabs over spaces.", cwd=here)
        ortet("milestone", "-s", "s", "--commit", cwd=here)
        dry = ortet.json("memory", "consolidate", "--dry-run", cwd=here)
        assert dry["dry_run"] and dry["episodes"] == 1 and dry["facts"]
        assert ortet.json("facts", "s", cwd=here) == []
        done = ortet.json("memory", "consolidate", cwd=here)
        made: list[dict[str, Any]] = done["facts"]
        assert [fact["id"] for fact in made] == [fact["id"] for fact in dry["facts"]]
        assert {fact["id"] for fact in ortet.json("facts", "s", cwd=here)} == {
            fact["id"] for fact in made
        }
        shown = ortet.json("facts", "show", made[0]["id"][-8:], "-s", "s", cwd=here)
        assert shown["origin"]["name"] == "s" and shown["origin"]["kind"] == "message"
        assert ortet("memory", "consolidate", cwd=here).out == "0 episodes, 0 facts\n"
        assert ortet.kind("memory", "consolidate", "a b", cwd=here, code=2) == "bad_name"

    def test_memory_contradictions_lists_conflicting_facts(self, ortet: Ortet, here: Path) -> None:
        asked = ("memory", "contradictions", "s")
        one = learn(ortet, here, "the port is 5432", "--about", "database")
        assert ortet(*asked, cwd=here).out == "no contradiction\n"
        two = learn(ortet, here, "the port is 5433", "--about", "database")
        assert ortet(*asked, cwd=here).out.splitlines() == [
            f"{one[-8:]}  database  the port is 5432",
            f"{two[-8:]}            the port is 5433",
        ]
        (found,) = ortet.json(*asked, cwd=here)
        assert (found["ours"]["id"], found["theirs"]["id"]) == (one, two)
        ortet("facts", "forget", one, "-s", "s", "--why", "it moved", cwd=here)
        assert ortet.json(*asked, cwd=here) == []

    def test_memory_refresh_takes_over_newer_shared_facts(self, ortet: Ortet, here: Path) -> None:
        with open_hub(ortet.store) as hub, hub.session("s") as s:
            s.learn("old", scope="agent")
            s.commit("one")
            (fork,) = s.fork(1, machine=False)
            name = fork.name
            s.learn("new", scope="agent")
            s.commit("two")
        assert texts(ortet, here, name) == ["old"]
        assert ortet("memory", "refresh", name, cwd=here).out == "1 learned, 0 given up\n"
        assert texts(ortet, here, name) == ["old", "new"]


def test_quiet_memory_commands_print_nothing(ortet: Ortet, here: Path) -> None:
    id_ = learn(ortet, here, "one")
    for words in (
        *(["learn", "-s", "s", "x", "--scope", "agent"], ["recall", "x", "-s", "s"]),
        *(["facts", "s"], ["facts", "show", id_, "-s", "s"], ["facts", "history", id_, "-s", "s"]),
        *(["facts", "forget", id_, "-s", "s"], ["milestone", "-s", "s"], ["episodes"]),
        *(["context", "x", "-s", "s"], ["context", "x", "-s", "s", "--chat"]),
        *(["memory", "export", "s"], ["memory", "refresh", "s"], ["memory", "contradictions", "s"]),
    ):
        done = ortet(*words, "-q", cwd=here)
        assert (done.out, done.err) == ("", ""), words


@pytest.mark.parametrize(
    "words",
    [
        *(["facts", verb] for verb in ("ls", "show", "forget", "history")),
        *(
            ["memory", verb]
            for verb in ("export", "diff", "contradictions", "consolidate", "refresh")
        ),
    ],
)
def test_help_of_verbs_in_groups(ortet: Ortet, tmp_path: Path, words: list[str]) -> None:
    out = ortet(*words, "--help", cwd=tmp_path).out
    assert "Example:" in out and f"ortet {' '.join(words)}" in out
    assert "--json" in out and "-q, --quiet" in out


def test_memory_commands_work_in_a_workspace_made_by_a_program(
    ortet: Ortet, tmp_path: Path
) -> None:
    """It has no pointer; its session is found all the same, and not one of its forks."""
    place = tmp_path / "shop"
    (place / "sub").mkdir(parents=True)
    store = ortet.json("stats", cwd=_store(ortet, tmp_path))["store"]
    with open_hub(store) as hub, hub.session("fix", workspace=place) as s:
        s.learn("the port is 3000", about="port")
        s.commit("one")
        (fork,) = s.fork(1)
        fork.learn("the port is 9090", about="port")
        fork.commit()
        s.learn("the shop is closed")
        s.commit("two")
    assert texts(ortet, place) == ["the port is 3000", "the shop is closed"]
    assert texts(ortet, place / "sub") == ["the port is 3000", "the shop is closed"]
    hits = ortet.json("recall", "which port?", cwd=place)["hits"]
    assert [hit["text"] for hit in hits] == ["the port is 3000"]
    learned = ortet.json("memory", "diff", "HEAD~1", cwd=place)["learned"]
    assert [fact["text"] for fact in learned] == ["the shop is closed"]


def _store(ortet: Ortet, place: Path) -> Path:
    """A place with a store that is made."""
    ortet("session", "new", "other", cwd=place)
    return place
