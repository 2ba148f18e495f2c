"""compact, checkpoint, unarchive, erase, hold, retention and dataset, through a real process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.fixtures.commands import Ortet

from ortet.config.environment import open_hub


@pytest.fixture
def here(ortet: Ortet, tmp_path: Path) -> Path:
    with open_hub(ortet.store) as hub, hub.session("s", goal="be green") as s:
        for number in range(6):
            s.say("user" if number % 2 == 0 else "assistant", f"words {number}", user="ann")
        s.learn("a fact")
        s.commit("talked")
    return tmp_path


def count(ortet: Ortet, here: Path) -> int:
    messages: int = ortet.json("session", "show", "s", cwd=here)["messages"]
    return messages


class TestCompact:
    def test_compact_replaces_old_messages_by_an_extract(self, ortet: Ortet, here: Path) -> None:
        done = ortet.json("compact", "s", "--keep-last", "2", cwd=here)["compaction"]
        assert done["count"] == 4 and "words 0" in done["summary"]
        assert count(ortet, here) == 2
        assert ortet.json("session", "show", "s", cwd=here)["facts"] == ["a fact"]
        assert ortet("compact", "s", "--keep-last", "2", cwd=here).out == "nothing to leave out\n"
        assert ortet.json("compact", "s", cwd=here)["compaction"] is None

    def test_compact_accepts_a_summary_from_a_file_or_stdin(self, ortet: Ortet, here: Path) -> None:
        words = ["compact", "s", "--keep-last", "3", "--summary"]
        assert ortet.kind(*words, "no", cwd=here, code=4) == "no_file"
        (here / "bad").write_bytes(b"\xff")
        assert ortet.kind(*words, "bad", cwd=here, code=2) == "not_text"
        assert count(ortet, here) == 6
        out = ortet(*words, "-", cwd=here, stdin=b"they talked").out
        assert out.startswith("left out 3 messages, events ")
        (event,) = ortet.json("journal", "s", "--kind", "compaction", cwd=here)
        assert event["data"]["summary"] == "they talked"
        assert ortet.kind("compact", "s", "--keep-last", "-1", cwd=here, code=2) == "bad_usage"


class TestCheckpoint:
    def test_a_checkpoint_file_restores_a_session_in_another_store(
        self, ortet: Ortet, here: Path, tmp_path: Path
    ) -> None:
        record = ortet("checkpoint", "s", cwd=here).data
        assert record["goal"] == "be green" and len(record["messages"]) == 6
        written = ortet.json("checkpoint", "s", "-o", "s.json", cwd=here)
        kept = json.loads(Path(written["path"]).read_text())
        assert kept["messages"] == record["messages"]
        assert ortet.kind("checkpoint", "--from", "s.json", cwd=here, code=5)  # the name is taken
        ortet("checkpoint", "--from", "s.json", "--name", "t", "--agent", "b", cwd=here)
        shown = ortet.json("session", "show", "t", cwd=here)
        assert (shown["goal"], shown["messages"], shown["agent"]) == ("be green", 6, "b")
        there = {"ORTET_URL": str(tmp_path / "other")}
        ortet("checkpoint", "--from", "s.json", cwd=here, env=there)
        assert len(ortet("session", "ls", "--json", cwd=here, env=there).data) == 1

    def test_invalid_checkpoint_arguments_are_refused(self, ortet: Ortet, here: Path) -> None:
        (here / "x.json").write_text('{"goal": 1}')
        words = ["checkpoint", "--from", "x.json"]
        assert ortet.kind(*words, cwd=here, code=2) == "bad_checkpoint"
        assert ortet.kind(*words, "-o", "y", cwd=here, code=2) == "bad_usage"
        assert ortet.kind("checkpoint", "s", "--name", "y", cwd=here, code=2) == "bad_usage"
        assert ortet.kind("checkpoint", "--from", "no", cwd=here, code=4) == "no_file"
        assert len(ortet.json("session", "ls", cwd=here)) == 1


class TestArchive:
    def test_unarchive_brings_back_an_archived_session(self, ortet: Ortet, here: Path) -> None:
        assert ortet.kind("unarchive", "s", cwd=here, code=5) == "illegal_move"
        ortet("archive", "s", cwd=here)
        assert len(ortet.json("journal", "s", "--kind", "message", cwd=here)) == 6
        assert ortet.json("unarchive", "s", cwd=here)["status"] == "paused"
        assert count(ortet, here) == 6


class TestErase:
    def test_erase_of_a_session_writes_a_signed_receipt(self, ortet: Ortet, here: Path) -> None:
        assert ortet.kind("erase", "s", cwd=here, code=2) == "not_confirmed"
        assert ortet.kind("erase", "--yes", cwd=here, code=2) == "nothing_meant"
        receipt = ortet("erase", "s", "--yes", "--receipt", "r.json", "--json", cwd=here).data
        assert receipt["complete"] and receipt["signature"] and receipt["events"]
        assert json.loads((here / "r.json").read_text())["id"] == receipt["id"]
        assert count(ortet, here) == 0
        ortet("verify", cwd=here)
        assert "erased" in ortet("audit", "s", cwd=here).out.splitlines()[-1]

    def test_a_second_erase_reports_already_erased(self, ortet: Ortet, here: Path) -> None:
        """Failed before: it told the same again."""
        words = ("erase", "s", "--event", "2", "--yes")
        assert ortet("--json", *words, cwd=here).data["already"] is False
        again = ortet(*words, cwd=here).out
        assert again.startswith("already erased: 1 event")
        assert ortet("--json", *words, cwd=here).data["already"] is True

    def test_erase_of_a_user_covers_all_sessions(self, ortet: Ortet, here: Path) -> None:
        with open_hub(ortet.store) as hub, hub.session("t") as s:
            s.say("user", "of ann", user="ann")
            s.say("user", "of ben", user="ben")
        out = ortet("erase", "--user", "ann", "--yes", cwd=here).out
        assert out.startswith("erased 7 events, receipt ")
        assert count(ortet, here) == 0
        assert ortet.json("session", "show", "t", cwd=here)["messages"] == 1
        ortet("verify", cwd=here)

    def test_erase_of_single_events_keeps_the_others(self, ortet: Ortet, here: Path) -> None:
        said = [one["seq"] for one in ortet.json("journal", "s", "--kind", "message", cwd=here)]
        words = ["--event", str(said[0]), "--event", str(said[1]), "--yes"]
        assert "erased 2 events" in ortet("erase", "s", *words, cwd=here).out
        assert count(ortet, here) == 4
        assert ortet.kind("erase", "s", "--event", "999", "--yes", cwd=here, code=2) == "no_event"

    def test_erase_of_a_session_in_use_or_on_hold_is_refused(
        self, ortet: Ortet, here: Path
    ) -> None:
        with open_hub(ortet.store) as hub, hub.session("s"):
            assert ortet.kind("erase", "s", "--yes", cwd=here, code=6) == "lease_held"
        ortet("hold", "s", cwd=here)
        assert ortet.kind("erase", "s", "--yes", cwd=here, code=6) == "on_hold"
        assert count(ortet, here) == 6


class TestHold:
    def test_a_hold_prevents_retention_until_released(self, ortet: Ortet, here: Path) -> None:
        assert ortet("hold", cwd=here).out == "nothing is on hold\n"
        assert ortet.json("hold", "s", "--why", "incident 17", cwd=here)["why"] == "incident 17"
        (held,) = ortet.json("hold", cwd=here)
        assert held["name"] == "s" and "incident 17" in ortet("hold", cwd=here).out
        assert "incident 17" in ortet("session", "show", "s", cwd=here).out
        ortet("retention", "--keep-messages", "0", cwd=here)
        (deed,) = ortet.json("retain", cwd=here)["deeds"]
        assert deed["what"] == "keep" and count(ortet, here) == 6
        assert ortet.kind("session", "rm", "s", "--yes", cwd=here, code=6) == "on_hold"
        assert ortet.json("release", "s", cwd=here)["name"] == "s"
        assert ortet.kind("release", "s", cwd=here, code=4) == "no_hold"
        ortet("retain", cwd=here)
        assert count(ortet, here) == 0


class TestRetention:
    def test_retention_policies_are_set_per_agent_and_shown(self, ortet: Ortet, here: Path) -> None:
        assert ortet("retention", cwd=here).out.startswith("no policy")
        ortet("retention", "--keep-messages", "30", cwd=here)
        ortet("retention", "--archive-after", "90", cwd=here)  # and the first stays
        ortet("retention", "--agent", "b", "--keep-messages", "1.5", cwd=here)
        assert ortet.json("retention", cwd=here) == [
            {"agent": "b", "keep_messages": 1.5, "archive_after": None},
            {"agent": "default", "keep_messages": 30.0, "archive_after": 90.0},
        ]
        assert "archived after 90 idle days" in ortet("retention", cwd=here).out
        (one,) = ortet.json("retention", "--keep-messages", "forever", cwd=here)
        assert one["keep_messages"] is None and one["archive_after"] == 90.0
        (other,) = ortet.json("retention", "--agent", "new", cwd=here)
        assert other == {"agent": "new", "keep_messages": None, "archive_after": None}

    def test_invalid_retention_arguments_are_refused(self, ortet: Ortet, here: Path) -> None:
        for value in ("long", "-1", "nan"):
            words = ["retention", f"--keep-messages={value}"]
            assert ortet.kind(*words, cwd=here, code=2) == "bad_age", value
        assert ortet.json("retention", cwd=here) == []


class TestDataset:
    def test_dataset_exports_all_or_selected_sessions(self, ortet: Ortet, here: Path) -> None:
        ortet("session", "new", "t", cwd=here)
        assert ortet.json("dataset", "all.jsonl", cwd=here)["sessions"] == 2
        assert ortet("dataset", "one.jsonl", "s", cwd=here).out == "1 session -> one.jsonl\n"
        (line,) = (here / "one.jsonl").read_text().splitlines()
        assert len(json.loads(line)["messages"]) == 6
        assert ortet("dataset", "-", "s", cwd=here).out == (here / "one.jsonl").read_text()
        assert not (here / "-").exists()
        assert ortet.kind("dataset", "x.jsonl", "no", cwd=here, code=4) == "no_session"
        assert ortet.kind("dataset", "no/x.jsonl", cwd=here, code=7) == "io_error"
        assert not (here / "x.jsonl").exists()


class TestCommit:
    def test_commit_and_restore_cover_session_state_and_files(
        self, ortet: Ortet, proj: Path
    ) -> None:
        ortet("session", "new", "w", "-w", ".", "--goal", "g", cwd=proj)
        ortet("say", "one", cwd=proj)
        first = ortet.json("commit", "-m", "both", cwd=proj)
        (proj / "a.txt").write_text("two\n")
        ortet("say", "two", cwd=proj)
        second = ortet.json("commit", "-m", "both again", cwd=proj)
        assert second["parents"] == [first["oid"]]
        only_said = ortet.json("say", "three", cwd=proj) and ortet.json("commit", cwd=proj)
        assert only_said["created"] and only_said["changed"] == 0
        ortet("restore", first["oid"], cwd=proj)
        assert (proj / "a.txt").read_text() == "one\n"
        assert ortet.json("session", "show", cwd=proj)["messages"] == 1
        ortet("verify", cwd=proj)


def test_quiet_upkeep_commands_print_nothing(ortet: Ortet, here: Path) -> None:
    for words in (
        *(["compact", "s"], ["checkpoint", "s"], ["checkpoint", "s", "-o", "f"], ["hold", "s"]),
        *(["hold"], ["release", "s"], ["retention"], ["retention", "--keep-messages", "9"]),
        *(["dataset", "d"], ["erase", "s", "--yes"], ["archive", "s"], ["unarchive", "s"]),
    ):
        done = ortet(*words, "-q", cwd=here)
        assert (done.out, done.err) == ("", ""), words
