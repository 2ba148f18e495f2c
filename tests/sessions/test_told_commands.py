"""Deeds say what was run, also where nobody said why: in lists, briefings, and after a restore."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ortet
from ortet._util.codec import encode
from ortet.hub.hub import Hub
from ortet.journal.events import Draft
from ortet.sessions.conversation_state import known_effects
from ortet.sessions.writing.bulk_import import import_events

pytestmark = pytest.mark.files({})

VALUE = "correct-horse-battery-9f27"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub of this process's environment, with a secret in its vault."""
    monkeypatch.setenv("ORTET_VAULT_KEY", "ab" * 32)
    with ortet.open(tmp_path / "store") as hub:
        hub.vault.put("DEPLOY", VALUE)
        yield hub


def test_effects_and_briefing_show_the_command_that_was_run(hub: Hub, work: Path) -> None:
    with hub.session("s", workspace=work) as s:
        first = s.commit("before").oid
        s.run("echo one > file")
        s.run(["touch", "a b"], why="a name with a space")
        s.act(len, "abc")
        s.run("false")
        told = [(one.name, one.command, one.why) for one in s.effects()]
        assert told == [
            ("run", "echo one > file", ""),
            ("run", "touch a b", "a name with a space"),
            ("len", "", ""),
            ("run", "false", ""),
        ]
        text = s.briefing().markdown
        for line in (
            "`run: echo one > file`",
            "`run: touch a b`: a name with a space",
            "`len`",
            "`run: false`",
        ):
            assert line in text, text
        assert [one.name for one in s.restore(first).deeds] == ["len"]  # files went back


def told_commands(hub: Hub, id_: str) -> list[str]:
    return [one.command for one in hub.get(id_).effects()]


def test_effects_show_the_command_argument_of_a_tool(hub: Hub) -> None:
    """Its own, and one of a transcript that was taken in."""
    with hub.session("s") as s:
        s.act(shell, command="ls -l")
        begun: dict[str, Any] = {
            "id": "b1",
            "name": "Bash",
            "replay": "recorded",
            "key": "",
            "scope": "family",
        }
        begun |= {"why": "", "args": [], "kwargs": {"command": f"echo {VALUE}"}}
        import_events(s, [Draft("begun", begun), Draft("ended", {"id": "b1", "state": "done"})])
        assert told_commands(hub, s.id) == ["ls -l", "echo [DEPLOY]"]


def shell(command: str) -> str:
    return command


def test_secrets_in_commands_are_masked(hub: Hub, work: Path, tmp_path: Path) -> None:
    with hub.session("s", workspace=work) as s:
        s.run(f"echo {VALUE}", why=f"to see {VALUE}")
        (only,) = s.effects()
        assert (only.command, only.why) == ("echo [DEPLOY]", "to see [DEPLOY]")
        assert VALUE not in s.briefing().markdown
    files = (tmp_path / "store").glob("catalog.db*")
    assert not [one for one in files if VALUE.encode() in one.read_bytes()]


def test_long_command_is_cut_to_500_characters(hub: Hub, work: Path) -> None:
    with hub.session("s", workspace=work) as s:
        s.run("true " + "x" * 5000)
        assert len(s.effects()[0].command) == 500


def test_erasing_a_session_erases_its_commands(hub: Hub, work: Path) -> None:
    with hub.session("s", workspace=work) as s:
        s.run("echo something private")
    hub.erase(s.id)
    assert told_commands(hub, s.id) == [""]


def test_effect_rows_of_earlier_releases_have_an_empty_command(hub: Hub, work: Path) -> None:
    with hub.session("s", workspace=work) as s:
        s.run("echo one")
    (deed,) = known_effects(hub.get(s.id).internals.context)
    old = msgspec.structs.replace(deed, effect=msgspec.structs.replace(deed.effect, command=""))
    assert b"command" not in encode(old)
    hub.catalog.put_row(f"deed/{deed.ledger}", deed.effect.id, encode(old))
    assert told_commands(hub, s.id) == [""]
    assert "`run`" in hub.get(s.id).briefing().markdown
