"""What sessions say of the world around them: it outlives a restore, and goes when told to."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures import forked
from tests.fixtures.erasing import holds

from ortet.config.environment import open_hub
from ortet.errors import Conflict, Diverged, Invalid, NotFound
from ortet.hub.hub import Hub
from ortet.sessions.session import Session
from ortet.testing.clock import ManualClock

START = 1_700_000_000
"""Where the clock of these tests begins, in seconds."""

COOKIE = "sid-cookie-do-not-show"
STATE = {"cookies": [{"name": "sid", "value": COOKIE}], "origins": []}
TOKEN = "ghp_do-not-show-me-4711"

OpenAt = Callable[..., Hub]


@pytest.fixture
def open_at(store: Path, env: dict[str, str], clock: ManualClock) -> Iterator[OpenAt]:
    hubs: list[Hub] = []

    def open_(url: Path = store) -> Hub:
        hubs.append(open_hub(url, environ=env, clock=clock))
        return hubs[-1]

    yield open_
    for hub in hubs:
        hub.close()


@pytest.fixture
def hub(open_at: OpenAt) -> Hub:
    """A hub whose clock the test moves, of a user who may have keys."""
    return open_at()


@pytest.fixture
def s(hub: Hub) -> Session:
    return hub.session("s", goal="ship it")


def act(s: Session, name: str) -> str:
    """A deed; its id."""
    s.act(lambda: None, name=name)
    return s.effects()[-1].id


class TestCollaborate:
    def test_collaborate_updates_text_link_and_status_by_name(self, s: Session) -> None:
        s.external.collaborate("review", kind="comment", text="the lock is never")
        s.external.collaborate(
            "review", text="the lock is never released", link="https://host/7#c1"
        )
        s.external.collaborate("pr", kind="pull_request", status="done")
        review, pr = sorted(s.external.collaborations(), key=lambda one: one.name, reverse=True)
        assert (review.status, review.kind, review.link) == (
            "draft",
            "comment",
            "https://host/7#c1",
        )
        assert review.text == "the lock is never released"
        assert (pr.status, pr.text) == ("done", "")
        assert s.external.collaborate("pr", status="withdrawn").status == "withdrawn"

    def test_collaborations_are_visible_in_another_process(
        self, hub: Hub, s: Session, open_at: OpenAt
    ) -> None:
        s.external.collaborate("a", text="half", effect=act(s, "push"))
        s.pause()
        (one,) = open_at().session("s").external.collaborations()
        assert (one.text, bool(one.effect)) == ("half", True)

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("done", "draft"),
            ("withdrawn", "draft"),
            ("withdrawn", "done"),
            ("withdrawn", "withdrawn"),
            ("withdrawn", None),
        ],
    )
    def test_collaborate_with_an_illegal_status_change_is_refused(
        self, s: Session, old: str, new: str | None
    ) -> None:
        s.external.collaborate("a", status=old)
        before = s.internals.event_log.tip()
        with pytest.raises(Conflict) as error:
            s.external.collaborate("a", status=new, text="more")
        assert error.value.kind == "illegal_move" and error.value.details["status"] == old
        assert s.internals.event_log.tip() == before

    @pytest.mark.parametrize(
        "bad",
        [
            {"name": ""},
            {"name": "a\nb"},
            {"name": "a" * 201},
            {"name": "a", "status": "open"},
            {"name": "a", "text": "x" * 70_000},
            {"name": "a", "link": 7},
        ],
    )
    def test_collaborate_with_bad_input_is_refused(self, s: Session, bad: dict[str, Any]) -> None:
        with pytest.raises(Invalid):
            s.external.collaborate(**bad)
        assert s.external.collaborations() == []

    def test_collaborate_with_an_unknown_effect_is_not_found(self, s: Session) -> None:
        with pytest.raises(NotFound) as error:
            s.external.collaborate("a", effect="nobody did that")
        assert error.value.kind == "no_effect"

    def test_collaboration_made_inside_an_action_refers_to_its_effect(self, s: Session) -> None:
        s.act(lambda: s.external.collaborate("a", status="done") and None, name="push")
        (one,) = s.external.collaborations()
        assert one.effect == s.effects()[0].id

    def test_restore_does_not_undo_what_others_see(self, s: Session) -> None:
        s.external.collaborate("note", text="only in my head")
        first = s.commit("before")
        s.external.collaborate(
            "pr", kind="pull_request", status="done", link="https://h/1", effect=act(s, "open_pr")
        )
        s.external.collaborate("note", text="more of it")
        s.commit("after")
        report = s.restore(first.oid)
        assert [one.name for one in report.collaborations] == ["pr"]
        assert "others still see pull_request 'pr' (done, https://h/1)" in str(report)
        found = {one.name: one for one in s.external.collaborations()}
        assert found["note"].text == "only in my head"
        assert (found["pr"].status, found["pr"].link) == ("done", "https://h/1")
        assert "https://h/1" in s.briefing().markdown
        with pytest.raises(Conflict):
            s.external.collaborate("pr", status="draft")
        s.external.collaborate("pr", status="withdrawn")
        again = s.restore(first.oid)
        assert "pr' (withdrawn" in str(again)
        assert {one.name: one.status for one in s.external.collaborations()}["pr"] == "withdrawn"

    def test_restore_undoes_collaborations_without_an_effect(self, s: Session) -> None:
        first = s.commit("before")
        s.external.collaborate("idea", status="done")
        act(s, "other")
        report = s.restore(first.oid)
        assert report.collaborations == [] and "others still see" not in str(report)
        assert s.external.collaborations() == []

    def test_forks_have_their_own_collaborations(self, s: Session) -> None:
        s.external.collaborate("pr", status="done", effect=act(s, "open_pr"))
        (kid,) = s.fork(1)
        kid.external.collaborate("pr", status="withdrawn", effect=act(kid, "close_pr"))
        assert s.external.collaborations()[0].status == "done"
        assert kid.external.collaborations()[0].status == "withdrawn"


class TestWindows:
    def test_rate_window_refills_after_its_reset_time(self, s: Session, clock: ManualClock) -> None:
        s.external.window("github", remaining=12, reset=START + 60, limit=5000)
        s.external.window("slow", remaining=0, reset=datetime.fromtimestamp(START + 90, UTC))
        one, two = s.external.windows()
        assert (one.service, one.remaining, one.limit, one.full) == ("github", 12, 5000, False)
        assert one.reset == (START + 60) * 10**9
        assert (two.remaining, two.limit, two.full) == (0, None, False)
        clock.advance(60 * 10**9)
        one, two = s.external.windows()
        assert (one.remaining, one.full) == (5000, True) and not two.full
        clock.advance(30 * 10**9)
        assert (s.external.windows()[1].remaining, s.external.windows()[1].full) == (None, True)

    @pytest.mark.parametrize(
        "bad",
        [
            {"service": "", "remaining": 1, "reset": START},
            {"service": "a", "remaining": -1, "reset": START},
            {"service": "a", "remaining": float("nan"), "reset": START},
            {"service": "a", "remaining": True, "reset": START},
            {"service": "a", "remaining": 5, "limit": 4, "reset": START},
            {"service": "a", "remaining": 1, "reset": "soon"},
            {"service": "a", "remaining": 1, "reset": -3},
            {"service": "a", "remaining": 1, "reset": float("inf")},
            {"service": "a", "remaining": 1, "reset": datetime(2026, 1, 1)},  # noqa: DTZ001
        ],
    )
    def test_rate_window_with_bad_input_is_refused(self, s: Session, bad: dict[str, Any]) -> None:
        with pytest.raises(Invalid):
            s.external.window(**bad)
        assert s.external.windows() == []

    def test_restore_keeps_the_current_rate_window_of_the_agent(
        self, hub: Hub, s: Session, clock: ManualClock
    ) -> None:
        s.external.window("github", remaining=900, reset=START + 60)
        first = s.commit("many left")
        clock.advance(1)
        s.external.window("github", remaining=3, reset=START + 60)
        s.restore(first.oid)
        assert s.external.windows()[0].remaining == 3
        assert "3 left until 2023-11-14T22:14:20Z" in s.briefing().markdown
        assert hub.session("other").external.windows()[0].remaining == 3  # the same agent
        assert hub.session("s", agent="else").external.windows() == []
        assert hub.session("s", agent="defaul").external.windows() == []

    def test_rate_window_is_read_from_the_session_state_if_its_row_is_missing(
        self, s: Session, open_at: OpenAt, hub: Hub, tmp_path: Path
    ) -> None:
        """Where no row is, the mind's own memory counts."""
        s.external.window("github", remaining=7, reset=START + 60)
        s.commit("x")
        hub.catalog.drop_row("window", "default/github")
        assert s.external.windows()[0].remaining == 7

    def test_briefing_omits_rate_windows_that_were_reset(
        self, s: Session, clock: ManualClock
    ) -> None:
        s.external.window("github", remaining=7, reset=START + 60)
        clock.advance(60 * 10**9)
        assert "github" not in s.briefing().markdown


class TestTokens:
    def test_restored_commit_reads_the_current_token_from_the_vault(
        self, hub: Hub, s: Session
    ) -> None:
        hub.vault.put("gh", "old")
        s.external.token("github", "gh")
        first = s.commit("with the old token")
        s.say("user", "x")
        s.commit("on")
        hub.vault.put("gh", TOKEN)
        s.restore(first.oid)
        assert s.external.token("github") == TOKEN
        assert [(one.service, one.vault) for one in s.external.tokens()] == [("github", "gh")]
        assert s.briefing().data["tokens"] == [{"service": "github", "vault": "gh"}]
        assert hub.get(s.id).external.token("github") == TOKEN

    def test_token_with_a_missing_secret_or_service_is_refused(self, hub: Hub, s: Session) -> None:
        with pytest.raises(NotFound) as missing:
            s.external.token("github", "gh")
        assert missing.value.kind == "no_secret"
        with pytest.raises(NotFound) as unknown:
            s.external.token("github")
        assert unknown.value.kind == "no_token"
        with pytest.raises(Invalid):
            s.external.token("", "gh")
        hub.vault.put("gh", TOKEN)
        s.external.token("github", "gh")
        hub.vault.forget("gh")
        with pytest.raises(NotFound):
            s.external.token("github")

    def test_token_value_is_never_recorded_in_events(self, hub: Hub, s: Session) -> None:
        hub.vault.put("gh", TOKEN)
        s.external.token("github", "gh")
        secret = s.external.token("github")
        assert s.act(len, secret, name="push") == len(TOKEN)
        s.act(len, {"Authorization": secret}, name="call")
        s.act(lambda: secret, name="leak")
        for record in (
            lambda: s.say("user", secret),
            lambda: s.note("key", secret),
            lambda: s.learn(secret),
            lambda: s.external.collaborate("x", text=secret),
            lambda: s.think(secret),
        ):
            with pytest.raises(Invalid) as error:
                record()
            assert TOKEN not in str(error.value)
        assert TOKEN not in str(list(s.events()))


class TestBrowser:
    def test_browser_state_keeps_the_parts_that_are_not_given(
        self, s: Session, tmp_path: Path
    ) -> None:
        assert (s.external.browser().urls, s.external.browser().storage) == ([], None)
        saved = s.external.browser(["https://a/", "https://b/"], STATE)
        assert saved.storage == STATE and COOKIE not in repr(saved)
        s.external.browser(urls=["https://c/"])
        assert (s.external.browser().urls, s.external.browser().storage) == (["https://c/"], STATE)
        file = tmp_path / "state.json"
        file.write_text(json.dumps({"cookies": []}))
        s.external.browser(storage=file)
        assert (s.external.browser().urls, s.external.browser().storage) == (
            ["https://c/"],
            {"cookies": []},
        )
        assert s.briefing().data["browser"] == [{"urls": ["https://c/"], "storage": True}]

    def test_restore_brings_back_the_browser_state_of_the_commit(
        self, hub: Hub, s: Session
    ) -> None:
        s.external.browser(["https://a/"], STATE)
        first = s.commit("logged in")
        s.external.browser([], {"cookies": []})
        s.commit("logged out")
        s.restore(first.oid)
        assert s.external.browser().storage == STATE and s.external.browser().urls == ["https://a/"]
        assert s.external.browser(current=True).storage == {"cookies": []}
        view = hub.get(s.id)
        assert view.external.browser().storage == STATE
        assert view.external.browser(current=True).urls == []

    def test_equal_browser_states_are_stored_once(self, hub: Hub, s: Session) -> None:
        s.external.browser(storage=STATE)
        s.external.browser(storage=dict(reversed(STATE.items())))
        assert len(hub.vault.names("browser/")) == 1 and hub.vault.names() == []

    @pytest.mark.parametrize(
        "bad",
        [
            {"urls": [""]},
            {"urls": [7]},
            {"urls": ["https://a/"] * 1001},
            {"urls": [f"https://me:{COOKIE}@host/"]},
            {"storage": [COOKIE]},
            {"storage": {"cookies": object()}},
            {"storage": "/nonexistent/state.json"},
        ],
    )
    def test_browser_with_bad_input_is_refused_without_showing_secrets(
        self, hub: Hub, s: Session, bad: dict[str, Any]
    ) -> None:
        with pytest.raises(Invalid) as error:
            s.external.browser(**bad)
        assert COOKIE not in str(error.value) and error.value.__cause__ is None
        assert s.external.browser().urls == [] and hub.vault.names("browser/") == []

    def test_browser_with_a_broken_state_file_is_refused_without_showing_it(
        self, s: Session, tmp_path: Path
    ) -> None:
        file = tmp_path / "state.json"
        file.write_text(f'{{"cookies": "{COOKIE}"')
        with pytest.raises(Invalid) as error:
            s.external.browser(storage=file)
        assert COOKIE not in str(error.value)


class TestNowhere:
    def test_secrets_are_in_no_file(
        self, hub: Hub, s: Session, store: Path, tmp_path: Path
    ) -> None:
        """Store, bundle, archive, data set, checkpoint, carried record, audit, briefing."""
        hub.vault.put("gh", TOKEN)
        s.external.token("github", "gh")
        s.external.browser(["https://a/"], STATE)
        s.act(len, s.external.token("github"), name="push")
        s.commit("one")
        (tmp_path / "out").mkdir()
        hub.export("s", tmp_path / "out/s.bundle")
        hub.governance.export_jsonl(tmp_path / "out/s.jsonl")
        told = [s.carry(), s.checkpoint().to_json(), str(hub.audit(s.id)), str(s.briefing())]
        (tmp_path / "out/told").write_text("\n".join(map(str, told)))
        hub.vault.rotate()
        s.pause()
        hub.archive(s.id)
        for secret in (TOKEN, COOKIE):
            assert holds(store, secret) == []
            assert holds(tmp_path / "out", secret) == []
        assert holds(tmp_path / "out", "https://a/")  # what is looked for would be found
        hub.verify()


class TestGoing:
    def test_erase_of_a_session_removes_its_collaborations_windows_and_browser_state(
        self, hub: Hub, s: Session, store: Path
    ) -> None:
        s.external.collaborate("pr-of-alice", text="alice wrote", effect=act(s, "push"))
        s.external.window("alice.example", remaining=1, reset=START + 60)
        s.external.browser(["https://alice.example/"], STATE)
        s.commit("one")
        first = s.head
        assert first is not None
        s.say("user", "kept")
        s.commit("two")
        s.restore(first.oid)
        s.pause()
        hub.erase(s.id)
        assert hub.vault.names("browser/") == []
        view = hub.get(s.id)
        assert view.external.collaborations() == [] and view.external.windows() == []
        assert view.external.browser(current=True).urls == []
        hub.verify()
        hub.close()
        assert holds(store, "alice") == []

    def test_erase_of_one_event_removes_only_its_collaboration(self, hub: Hub, s: Session) -> None:
        s.external.collaborate("a", text="one", effect=act(s, "push"))
        gone = s.internals.event_log.tip().seq
        s.external.collaborate("b", text="two")
        s.pause()
        hub.erase(s.id, seqs=[gone])
        assert [one.name for one in hub.get(s.id).external.collaborations()] == ["b"]

    def test_erase_of_an_event_also_clears_it_in_a_fork(self, hub: Hub, s: Session) -> None:
        s.external.collaborate("a", effect=act(s, "push"))
        seq = s.internals.event_log.tip().seq
        (kid,) = s.fork(1)
        kid.external.collaborate("a", status="done")
        kid.pause()
        s.pause()
        hub.erase(s.id, seqs=[seq])
        assert [one.effect for one in hub.get(kid.id).external.collaborations()] == [""]

    def test_remove_deletes_browser_states_and_rows_of_the_session_only(
        self, hub: Hub, s: Session
    ) -> None:
        hub.vault.put("gh", TOKEN)
        s.external.collaborate("a", effect=act(s, "push"))
        s.external.browser(["https://a/"], STATE)
        other = hub.session("other")
        other.external.browser(storage=STATE)
        s.pause()
        hub.remove(s.id)
        assert hub.vault.names() == ["gh"]
        assert hub.vault.names(f"browser/{s.id}/") == []
        assert other.external.browser().storage == STATE
        assert hub.catalog.rows(f"collaboration/{s.id}") == []
        assert hub.catalog.row("browser", s.id) is None

    def test_remove_keeps_browser_state_shared_with_a_fork(self, hub: Hub, s: Session) -> None:
        s.external.browser(["https://a/"], STATE)
        (kid,) = s.fork(1)
        s.external.browser(storage={"cookies": [1]})
        s.pause()
        hub.remove(s.id)
        assert kid.external.browser().storage == STATE
        assert len(hub.vault.names("browser/")) == 1
        kid.pause()
        hub.remove(kid.id)

    def test_states_of_expired_commits_are_swept(
        self, hub: Hub, s: Session, clock: ManualClock
    ) -> None:
        """Failed before: they stayed for ever."""
        point = s.commit("one")
        s.external.browser(["https://a/"], {"cookies": [1]})
        s.commit("two")
        s.external.browser(storage=STATE)
        left = s.commit("three")
        s.restore(point.oid)
        s.external.browser(storage={"cookies": [3]})
        hub.sweep()
        assert len(hub.vault.names("browser/")) == 3
        with hub.session("again") as other:
            other.adopt(left.oid)
            other.commit("kept")
        clock.advance(10)
        hub.sweep(expire_ns=1)
        assert len(hub.vault.names("browser/")) == 3
        assert hub.get("again").external.browser().storage == STATE
        hub.remove("again")
        clock.advance(10)
        hub.sweep(expire_ns=1)
        assert s.external.browser().storage == {"cookies": [3]}
        assert len(hub.vault.names("browser/")) == 1
        hub.verify()

    def test_erase_killed_midway_is_finished_by_the_next_erase(
        self, hub: Hub, s: Session, store: Path, env: dict[str, str]
    ) -> None:
        """The next erasure ends what was begun, also in the vault."""
        s.external.browser(["https://alice.example/"], STATE)
        s.commit("one")
        s.pause()
        code = (
            "import sys\nfrom ortet.config.environment import open_hub\n"
            "open_hub(sys.argv[1]).erase(sys.argv[2])\n"
        )
        done = forked.run(
            [sys.executable, "-c", code, str(store), s.id],
            env={**os.environ, **env, "ORTET_FAULT": "erase.rows:kill"},
            check=False,
        )
        assert done.returncode == -signal.SIGKILL
        assert len(hub.vault.names("browser/")) == 1
        hub.erase(s.id)
        assert hub.vault.names("browser/") == [] and hub.catalog.row("browser", s.id) is None
        hub.verify()

    def test_browser_state_and_its_event_are_stored_together_or_not_at_all(
        self, hub: Hub, store: Path, env: dict[str, str]
    ) -> None:
        """The state of a browser and the event that names it come together, or not at all."""
        code = (
            "import sys\nfrom ortet.config.environment import open_hub\n"
            "s = open_hub(sys.argv[1]).session('k')\n"
            "s.external.browser(['https://a/'], {'cookies': []})\n"
        )
        hub.session("k").pause()
        for point, kept in (("before", 0), ("after", 1)):  # the first append is that it is opened
            done = forked.run(
                [sys.executable, "-c", code, str(store)],
                env={**os.environ, **env, "ORTET_FAULT": f"journal.{point}-append:kill:2"},
                check=False,
            )
            assert done.returncode == -signal.SIGKILL
            states = hub.vault.names("browser/")
            (row,) = hub.sessions()
            urls = hub.get(row.id).external.browser().urls
            assert (len(states), len(urls)) == (kept, kept)


class TestReplay:
    def test_replay_of_collaborations_windows_and_browser_records_nothing_new(
        self, hub: Hub, s: Session
    ) -> None:
        def program(s: Session) -> None:
            s.external.collaborate("pr", text="half")
            s.external.window("github", remaining=5, reset=START + 60)
            s.external.browser(["https://a/"], STATE)
            s.external.collaborate("pr", status="done")
            s.external.collaborate("pr", status="withdrawn")

        program(s)
        s.pause()
        before = hub.vault.names("browser/")
        again = hub.session("s", replay=True)
        program(again)
        assert again.external.collaborations()[0].status == "withdrawn"
        assert hub.vault.names("browser/") == before
        with pytest.raises(Diverged):
            again.external.collaborate("another")
        again.pause()

    def test_replay_accepts_an_earlier_status_of_a_finished_collaboration(
        self, hub: Hub, s: Session
    ) -> None:
        def program(s: Session) -> None:
            s.act(lambda: None, name="push")
            s.external.collaborate("pr", status="draft", effect=s.effects()[0].id)
            s.external.collaborate("pr", status="done")

        program(s)
        s.pause()
        again = hub.session("s", replay=True)
        program(again)  # although what is real is done already
        again.pause()


class TestTravel:
    def test_checkpoint_carries_collaborations_and_windows_but_no_token_value(
        self, hub: Hub, s: Session, open_at: OpenAt, tmp_path: Path
    ) -> None:
        hub.vault.put("gh", TOKEN)
        s.external.token("github", "gh")
        s.external.collaborate("pr", kind="pull_request", text="half", effect=act(s, "push"))
        s.external.window("github", remaining=5, reset=START + 60, limit=9)
        text = s.checkpoint().to_json()
        assert TOKEN not in text
        there = open_at(tmp_path / "there").transfer.from_checkpoint(text, name="t")
        (one,) = there.external.collaborations()
        assert (one.name, one.kind, one.text) == ("pr", "pull_request", "half")
        assert [(w.service, w.remaining, w.limit) for w in there.external.windows()] == [
            ("github", 5, 9)
        ]
        with pytest.raises(NotFound):  # the vault of another store
            there.external.token("github")
        assert there.checkpoint().to_json()

    @pytest.mark.parametrize(
        ("field", "bad"),
        [
            ("collaborations", {"name": "a", "status": "open"}),
            ("collaborations", {"name": ""}),
            ("windows", {"service": "a", "reset": 5}),
            ("windows", {"service": "a", "remaining": 5, "reset": 10**30}),
        ],
    )
    def test_checkpoint_with_bad_collaborations_or_windows_is_refused(
        self, hub: Hub, s: Session, field: str, bad: dict[str, Any]
    ) -> None:
        record = json.loads(s.checkpoint().to_json())
        record |= {field: [bad], "digest": ""}
        with pytest.raises(Invalid) as error:
            hub.transfer.from_checkpoint(json.dumps(record), name="t")
        assert error.value.kind == "bad_checkpoint"

    def test_checkpoint_of_an_earlier_release_without_these_fields_is_accepted(
        self, hub: Hub, s: Session
    ) -> None:
        """One of a release that did not know these fields."""
        s.say("user", "hello")
        record = json.loads(s.checkpoint().to_json())
        for field in ("collaborations", "windows", "tokens"):
            assert record.pop(field) == []
        there = hub.transfer.from_checkpoint(json.dumps(record), name="t")
        assert [m.content for m in there.messages()] == ["hello"]

    def test_merge_keeps_both_versions_of_a_collaboration_changed_on_both_sides(
        self, hub: Hub, s: Session
    ) -> None:
        s.external.collaborate("shared", text="as it was")
        s.external.collaborate("both", text="as it was")
        s.external.collaborate("mine")
        (kid,) = s.fork(1)
        kid.external.collaborate(
            "pr", status="done", link="https://h/1", effect=act(kid, "open_pr")
        )
        kid.external.collaborate("shared", status="done")
        kid.external.collaborate("both", text="theirs")
        s.external.collaborate("both", text="ours")
        s.merge(kid)
        found = {one.name: one for one in s.external.collaborations()}
        assert sorted(found) == ["both", "both (2)", "mine", "pr", "shared"]
        assert (found["both"].text, found["both (2)"].text) == ("ours", "theirs")
        assert (found["pr"].link, found["shared"].status) == ("https://h/1", "done")
        hub.verify()

    def test_audit_shows_collaborations_windows_and_browser_urls(
        self, hub: Hub, s: Session
    ) -> None:
        s.external.collaborate("pr", kind="pull_request", link="https://h/1")
        s.external.window("github", remaining=5, reset=START + 60)
        s.external.browser(["https://a/"])
        lines = {line.kind: line.what for line in hub.audit(s.id).lines}
        assert lines["collaboration"] == "pr pull_request https://h/1"
        assert (lines["window"], lines["browser"]) == ("github: 5 left", "https://a/")
