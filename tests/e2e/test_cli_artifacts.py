"""artifact: content in versions, returned byte for byte."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from tests.fixtures.commands import Ortet

from ortet.config.environment import open_hub

BYTES = bytes(range(256))


@pytest.fixture
def here(ortet: Ortet, tmp_path: Path) -> Path:
    ortet("session", "new", "s", cwd=tmp_path)
    (tmp_path / "r.bin").write_bytes(BYTES)
    return tmp_path


class TestAdd:
    def test_artifact_add_stores_a_file_and_its_next_version(
        self, ortet: Ortet, here: Path
    ) -> None:
        made = ortet.json("artifact", "add", "r.bin", "-s", "s", "--kind", "raw", cwd=here)
        assert (made["name"], made["version"], made["size"]) == ("r.bin", 1, 256)
        (here / "r.bin").write_bytes(b"two")
        assert ortet("artifact", "add", "r.bin", "-s", "s", cwd=here).out == "r.bin@2, 3 B\n"
        assert len(ortet.json("artifact", "ls", "s", "--all", cwd=here)) == 2
        (last,) = ortet.json("artifact", "ls", "s", cwd=here)
        assert last["version"] == 2
        assert ortet("artifact", "ls", "s", cwd=here).out.startswith("r.bin@2  3 B  ")

    def test_artifact_add_accepts_stdin_a_link_and_another_name(
        self, ortet: Ortet, here: Path
    ) -> None:
        ortet("artifact", "add", "-", "--as", "x", "-s", "s", cwd=here, stdin=b"\0piped")
        ortet("artifact", "add", "r.bin", "--as", "deep/other", "-s", "s", cwd=here)
        ortet("artifact", "add", "--as", "pr", "--link", "https://e.org/7", "-s", "s", cwd=here)
        names = [one["name"] for one in ortet.json("artifact", "ls", "s", cwd=here)]
        assert sorted(names) == ["deep/other", "pr", "x"]
        assert "a link" in ortet("artifact", "ls", "s", cwd=here).out
        for verb in ("ls", "orphans"):  # -s as the others take it
            old = ortet("artifact", verb, "s", cwd=here).out
            assert ortet("artifact", verb, "-s", "s", cwd=here).out == old
            twice = ("artifact", verb, "s", "-s", "t")
            assert ortet.kind(*twice, cwd=here, code=2) == "two_sessions"
        assert "https://e.org/7" in ortet("artifact", "show", "pr", "-s", "s", cwd=here).out
        assert ortet.kind("artifact", "get", "pr", "-s", "s", cwd=here, code=4) == "no_content"

    def test_artifact_add_names_a_file_relative_to_its_workspace(
        self, ortet: Ortet, proj: Path
    ) -> None:
        ortet("session", "new", "w", "-w", ".", cwd=proj)
        made = ortet.json("artifact", "add", "main.py", cwd=proj / "src")
        assert made["name"] == "src/main.py"
        (proj.parent / "out").write_text("x")
        outside = ["artifact", "add", "../out"]
        assert ortet.kind(*outside, cwd=proj, code=2) == "outside_workspace"
        assert ortet.json(*outside, "--as", "out", cwd=proj)["size"] == 1

    @pytest.mark.parametrize(
        "words", [[], ["-"], ["r.bin", "--link", "u"], ["--link", "u"], ["--as", "x"]]
    )
    def test_invalid_artifact_add_arguments_are_refused(
        self, ortet: Ortet, here: Path, words: list[str]
    ) -> None:
        assert ortet.kind("artifact", "add", *words, "-s", "s", cwd=here, code=2) == "bad_usage"

    def test_artifact_add_of_a_missing_file_is_refused(self, ortet: Ortet, here: Path) -> None:
        for words in (["no"], ["no", "--as", "x"]):
            assert ortet.kind("artifact", "add", *words, "-s", "s", cwd=here, code=4) == "no_file"
        assert ortet.json("artifact", "ls", "s", cwd=here) == []


class TestGet:
    def test_artifact_get_writes_to_stdout_json_or_a_file(self, ortet: Ortet, here: Path) -> None:
        ortet("artifact", "add", "r.bin", "-s", "s", cwd=here)
        ortet("artifact", "add", "-", "--as", "r.bin", "-s", "s", cwd=here, stdin=b"two")
        assert ortet("artifact", "get", "r.bin", "-s", "s", cwd=here).out == "two"
        found = ortet.json("artifact", "get", "r.bin@1", "-s", "s", cwd=here)
        assert base64.b64decode(found["content"]) == BYTES
        out = ortet.json("artifact", "get", "r.bin@1", "-s", "s", "-o", "back", cwd=here)
        assert Path(out["path"]).read_bytes() == BYTES and "content" not in out
        get = ["artifact", "get", "-s", "s"]
        assert ortet.kind(*get, "r.bin@3", cwd=here, code=4) == "no_artifact"
        assert ortet.kind(*get, "no", cwd=here, code=4) == "no_artifact"
        assert ortet.kind(*get, "r.bin", "-o", "no/where", cwd=here, code=7) == "io_error"

    def test_an_artifact_name_may_contain_an_at_sign(self, ortet: Ortet, here: Path) -> None:
        ortet("artifact", "add", "-", "--as", "x@2", "-s", "s", cwd=here, stdin=b"odd")
        assert ortet("artifact", "get", "x@2", "-s", "s", cwd=here).out == "odd"
        assert ortet("artifact", "get", "x@2@1", "-s", "s", cwd=here).out == "odd"

    def test_artifact_show_names_the_effect_that_made_it(self, ortet: Ortet, here: Path) -> None:
        with open_hub(ortet.store) as hub, hub.session("s") as s:
            s.act(lambda: bool(s.artifact("plan.md", data="p")), name="draw", why="to see it")
        found = ortet.json("artifact", "show", "plan.md", "-s", "s", cwd=here)
        assert (found["action"]["name"], found["why"]) == ("draw", "to see it")
        out = ortet("artifact", "show", "plan.md", "-s", "s", cwd=here).out
        assert "by      draw" in out and "because to see it" in out


class TestOrphans:
    def test_artifact_orphans_lists_uncommitted_files_without_an_artifact(
        self, ortet: Ortet, proj: Path
    ) -> None:
        ortet("session", "new", "w", "-w", ".", cwd=proj)
        ortet("commit", "-m", "first", cwd=proj)
        (proj / "kept").write_text("1")
        (proj / "stray").write_text("2")
        ortet("artifact", "add", "kept", cwd=proj)
        assert ortet.json("artifact", "orphans", cwd=proj) == {"missing": [], "files": ["stray"]}
        assert ortet("artifact", "orphans", cwd=proj).out == "file  stray\n"

    def test_artifact_orphans_prints_none_for_an_empty_session(
        self, ortet: Ortet, here: Path
    ) -> None:
        assert ortet("artifact", "orphans", "s", cwd=here).out == "none\n"


def test_quiet_artifact_commands_print_nothing(ortet: Ortet, here: Path) -> None:
    for words in (
        *(["add", "r.bin", "-s", "s"], ["ls", "s"], ["show", "r.bin", "-s", "s"]),
        *(["get", "r.bin", "-s", "s"], ["orphans", "s"]),
    ):
        done = ortet("artifact", *words, "-q", cwd=here)
        assert (done.out, done.err) == ("", ""), words
    assert "orphans" in ortet("artifact", cwd=here).out
