"""State that no process holds: one turn at a time, or in the client's hands."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from ortet._util.codec import Compressor, encode
from ortet.config.environment import open_hub
from ortet.errors import Conflict, NotFound, Refused, Unsupported
from ortet.hub.hub import Hub
from ortet.store.signing import store_signer


class TestTurn:
    def test_turn_continues_the_conversation_in_any_process(self, store: Path) -> None:
        for number in range(3):
            with open_hub(store) as hub:
                said = hub.turn("chat", f"q{number}", reply=lambda s: f"a{len(s.messages())}")
                assert [m.role for m in said] == ["user", "assistant"]
        with open_hub(store) as hub:
            (row,) = hub.sessions()
            assert row.status == "paused"
            contents = [m.content for m in hub.get(row.id).messages()]
            assert contents == ["q0", "a1", "q1", "a3", "q2", "a5"]
            assert len(hub.log("chat")) == 3

    def test_turns_through_two_hubs_alternate_in_one_session(self, store: Path) -> None:
        with open_hub(store) as one, open_hub(store) as two:
            one.turn("c", "x")
            two.turn("c", "y", role="assistant")
            one.turn("c", "z")
            (row,) = one.sessions()
            assert [m.content for m in two.get(row.id).messages()] == ["x", "y", "z"]

    def test_a_reply_that_fails_keeps_the_question(self, hub: Hub) -> None:
        def fail(_: object) -> str:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            hub.turn("c", "x", reply=fail)
        (row,) = hub.sessions()
        assert row.status == "paused"
        assert [m.content for m in hub.get(row.id).messages()] == ["x"]


class TestCarry:
    def test_carry_resumes_a_session_and_is_stale_after_a_new_event(self, store: Path) -> None:
        with open_hub(store) as hub, hub.session("s", goal="g") as s:
            s.say("user", "hi")
            text = s.carry()
        assert text.replace("-", "").replace("_", "").isalnum()
        with open_hub(store) as hub:
            with hub.transfer.from_carry(text) as s:
                assert s.goal == "g"
                assert [m.content for m in s.messages()] == ["hi"]
                assert s.carry() != text
            with hub.transfer.from_carry(text) as s:  # nothing happened since
                s.say("assistant", "ho")
                newer = s.carry()
            with pytest.raises(Conflict) as caught:
                hub.transfer.from_carry(text)
            assert caught.value.kind == "stale_carry"
            assert hub.transfer.from_carry(newer).messages()[-1].content == "ho"

    def test_carry_includes_events_not_yet_flushed(self, hub: Hub) -> None:
        with hub.session("s", durability="commit") as s:
            s.say("user", "hi")
            text = s.carry()
        assert hub.transfer.from_carry(text).messages()[0].content == "hi"

    def test_tampered_carry_is_refused(self, hub: Hub) -> None:
        with hub.session("s") as s:
            text = s.carry()
        for position in range(0, len(text) - 1, 7):
            other = "A" if text[position] != "A" else "B"
            with pytest.raises(Refused) as caught:
                hub.transfer.from_carry(text[:position] + other + text[position + 1 :])
            assert caught.value.kind == "bad_carry"
        for bad in ("", "x", "é", text[:-8], text + "AAAA", "=" * 50):
            with pytest.raises(Refused):
                hub.transfer.from_carry(bad)

    def test_carry_of_another_store_is_refused(self, hub: Hub, tmp_path: Path) -> None:
        with hub.session("s") as s:
            text = s.carry()
        with open_hub(tmp_path / "other") as other, pytest.raises(Refused):
            other.transfer.from_carry(text)

    def test_a_restored_session_makes_it_stale(self, hub: Hub) -> None:
        with hub.session("s") as s:
            s.say("user", "a")
            s.commit()
            s.say("user", "b")
            s.commit()
            text = s.carry()
            s.rewind()
        with pytest.raises(Conflict):
            hub.transfer.from_carry(text)

    def test_carry_of_a_newer_format_is_unsupported(self, hub: Hub) -> None:
        plain = encode({"version": 99, "what": "ever"})
        packed = len(plain).to_bytes(4, "big") + Compressor().compress(plain)
        mark = store_signer(hub.store).sign(b"carry" + packed)
        with pytest.raises(Unsupported) as caught:
            hub.transfer.from_carry(base64.urlsafe_b64encode(mark + packed).rstrip(b"=").decode())
        assert caught.value.kind == "newer_carry"

    def test_carry_of_a_removed_session_is_not_found(self, hub: Hub) -> None:
        with hub.session("s") as s:
            text = s.carry()
        hub.catalog.drop_row("session", s.id)
        with pytest.raises(NotFound):
            hub.transfer.from_carry(text)
