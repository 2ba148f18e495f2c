"""Keys: one deed each, named by the action it belongs to, made of the arguments of a call."""

from __future__ import annotations

from pathlib import Path

import pytest

import ortet
from ortet.errors import Conflict, Invalid
from ortet.hub.hub import Hub


def test_a_key_belongs_to_one_action(hub: Hub) -> None:
    with hub.session("s") as s:
        assert s.act(len, "abc", key="k") == 3
        with pytest.raises(Conflict, match="belongs to action 'len'") as caught:
            s.act(sorted, "cab", key="k")
        assert caught.value.kind == "key_taken"
        with pytest.raises(Conflict, match="one key is one effect") as other:
            s.act(len, "other arguments", key="k")
        assert other.value.details == {
            "key": "k",
            "known": "len('abc')",
            "given": "len('other arguments')",
        }
        assert s.act(len, "abc", key="k") == 3
        assert [effect.name for effect in s.effects()] == ["len"]


class TestMadeOfArguments:
    def test_key_template_gives_one_effect_per_set_of_arguments(self, hub: Hub) -> None:
        sent: list[str] = []

        @ortet.action(replay="once", key="mail-{to}-{kind}")
        def mail(to: str, *, kind: str = "welcome") -> str:
            sent.append(to)
            return f"sent to {to}"

        with hub.session("s") as s:
            assert [s.act(mail, to) for to in ("ann", "bob", "ann")] == [
                "sent to ann",
                "sent to bob",
                "sent to ann",
            ]
            s.act(mail, to="ann", kind="invoice")
            assert [effect.key for effect in s.effects()] == [
                "mail-ann-welcome",
                "mail-bob-welcome",
                "mail-ann-invoice",
            ]
            assert s.act(mail, "eve", key="as {it} is") == "sent to eve"
        assert sent == ["ann", "bob", "ann", "eve"]
        with hub.session("s", replay=True) as again:
            assert again.act(mail, "ann") == "sent to ann"

    @pytest.mark.parametrize("key", ["mail-{nobody}", "mail-{", "{}", "{to.nothing}"])
    def test_key_template_with_unknown_parameters_is_refused(self, hub: Hub, key: str) -> None:
        @ortet.action(key=key)
        def mail(to: str) -> str:
            return to

        with hub.session("s") as s:
            with pytest.raises(Invalid, match="name parameters of the function") as caught:
                s.act(mail, "ann")
            assert caught.value.kind == "bad_key"
            assert s.effects() == []


def test_a_command_with_a_key_runs_once(hub: Hub, work: Path) -> None:
    with hub.session("s", workspace=work, engine="folder") as s:
        first = s.run("echo x >> done; wc -l < done", key="count")
        again = s.run("echo x >> done; wc -l < done", key="count")
        assert (first.exit_code, again.stdout.strip()) == (0, "1")
        (kid,) = s.fork(machine=False)
        assert kid.run("echo x >> done; wc -l < done", key="count").stdout.strip() == "1"
    assert (work / "done").read_text() == "x\n"


def test_turn_whose_reply_returns_none_is_refused_and_keeps_the_question(hub: Hub) -> None:
    with pytest.raises(Invalid, match="return what the assistant says"):
        hub.turn("s", "hello?", reply=lambda _: None)
    assert [m.content for m in hub.get(hub.sessions()[0].id).messages()] == ["hello?"]
