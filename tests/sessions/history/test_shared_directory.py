"""Sessions that work in one directory in turns, and commit its files with their minds."""

from __future__ import annotations

from pathlib import Path

import ortet
from ortet.ids import from_hex
from ortet.sessions.history.shared_directory import (
    commit_directory_head,
    commit_with_files,
    commits_around,
    restore_with_files,
    rewind_with_files,
)


def test_each_commit_holds_the_files_and_a_rewind_brings_them_back(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    note = work / "note"
    with ortet.open(tmp_path / "store") as hub, hub.workspace(work) as files:
        files.commit("empty")
        with hub.session("a") as a, hub.session("b") as b:
            commit_directory_head(a, files, "before")
            note.write_text("by a")
            said = a.say("user", "one")
            first = commit_with_files(a, files, "one")
            note.write_text("by b")
            b.say("user", "two")
            commit_with_files(b, files, "two")
            assert commit_with_files(b, files, "nothing new").message == "two"
            around = commits_around(a, said.seq - 1)
            assert around.before is not None
            assert around.after == (from_hex(first.oid), said.seq)
            was, report = rewind_with_files(a, files, said.seq, from_hex(first.oid))
            assert (note.read_text(), report.written) == ("by a", 1)
            assert [m.content for m in a.messages()] == ["one"]
            assert [m.content for m in b.messages()] == ["two"], "only its own conversation"
            rewind_with_files(a, files, said.seq - 1, around.before[0])
            assert not note.exists()
            assert a.messages() == []
            restore_with_files(a, files, from_hex(was.oid))
            assert note.read_text() == "by b"
            assert [m.content for m in a.messages()] == ["one"]
        hub.restore(first.oid, tmp_path / "copy")
        assert (tmp_path / "copy" / "note").read_text() == "by a"
        hub.verify()
