"""turn and carry: any process takes the next message, or the client keeps the state."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.fixtures.commands import Ortet

BOT = """
import json, sys
asked = json.load(sys.stdin)
print(asked["goal"], len(asked["messages"]), asked["messages"][-1]["content"].upper())
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "bot.py").write_text(BOT)
    return tmp_path


class TestTurn:
    def test_turn_with_a_reply_command_stores_its_answer(self, ortet: Ortet, here: Path) -> None:
        ortet("session", "new", "chat", "--goal", "greet", cwd=here)
        bot = f"{sys.executable} bot.py"
        assert ortet("turn", "chat", "hello", "--reply", bot, cwd=here).out == "greet 1 HELLO\n"
        said = ortet.json("turn", "chat", "bye", "--reply", bot, cwd=here)
        assert [(one["role"], one["content"]) for one in said] == [
            *(("user", "bye"), ("assistant", "greet 3 BYE"))
        ]
        shown = ortet.json("session", "show", "chat", cwd=here)
        assert shown["messages"] == 4 and shown["status"] == "paused" and shown["head"]

    def test_turn_creates_a_missing_session(self, ortet: Ortet, here: Path) -> None:
        assert ortet("turn", "new", cwd=here, stdin=b"from a pipe").out == ""
        assert ortet.json("session", "show", "new", cwd=here)["messages"] == 1

    def test_a_failing_reply_command_keeps_the_message_and_is_reported(
        self, ortet: Ortet, here: Path
    ) -> None:
        words = ["turn", "chat", "hello", "--reply", "exit 3"]
        error = ortet("--json", *words, cwd=here, code=7).error
        assert (error["kind"], error["details"]["exit_code"]) == ("reply_failed", 3)
        shown = ortet.json("session", "show", "chat", cwd=here)
        assert (shown["messages"], shown["status"]) == (1, "paused")

    def test_invalid_turn_arguments_are_refused(self, ortet: Ortet, here: Path) -> None:
        assert ortet.kind("turn", "a b", "x", cwd=here, code=2) == "bad_name"
        assert ortet.kind("turn", "chat", "x", "--role", "", cwd=here, code=2) == "bad_role"


class TestCarry:
    def test_carry_check_accepts_a_fresh_token_and_refuses_stale_or_changed_ones(
        self, ortet: Ortet, here: Path
    ) -> None:
        ortet("turn", "chat", "hello", cwd=here)
        ortet("carry", "chat", "-o", "ticket", cwd=here)
        text = (here / "ticket").read_text().strip()
        assert ortet("carry", "chat", cwd=here).out.strip() == text
        assert ortet.json("carry", "--check", "ticket", cwd=here)["name"] == "chat"
        assert ortet("carry", "--check", "ticket", cwd=here).out == "chat can go on\n"
        ortet("turn", "chat", "more", cwd=here)
        assert ortet.kind("carry", "--check", "ticket", cwd=here, code=5) == "stale_carry"
        (here / "ticket").write_text(text[:-2] + ("AA" if text[-2:] != "AA" else "BB"))
        assert ortet.kind("carry", "--check", "ticket", cwd=here, code=6) == "bad_carry"
        assert ortet.kind("carry", "chat", "--check", "ticket", cwd=here, code=2) == "bad_usage"
        assert ortet.kind("carry", "--check", "no", cwd=here, code=4) == "no_file"


def test_quiet_turn_and_carry_print_nothing(ortet: Ortet, here: Path) -> None:
    for words in (
        *(["turn", "chat", "x", "--reply", "echo y"], ["carry", "chat"]),
        *(["carry", "chat", "-o", "f"], ["carry", "--check", "f"]),
    ):
        done = ortet(*words, "-q", cwd=here)
        assert (done.out, done.err) == ("", ""), words
