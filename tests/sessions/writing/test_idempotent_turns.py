"""What is said under a key is said once, whoever says it again."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortet.config.environment import open_hub
from ortet.errors import Invalid
from ortet.hub.hub import Hub

HELLO = [("user", "hello"), ("assistant", "hi")]


def contents(hub: Hub, session: str) -> list[object]:
    return [message.content for message in hub.get(session).messages()]


def test_say_all_with_a_known_key_in_another_process_adds_nothing(store: Path) -> None:
    with open_hub(store) as hub, hub.session("s") as s:
        first = s.say_all(HELLO, key="t1")
    with open_hub(store) as hub, hub.session("s") as s:
        again = s.say_all(HELLO, key="t1")
        assert [event.seq for event in again] == [event.seq for event in first]
        s.say_all(HELLO, key="t2")
        assert contents(hub, s.id) == ["hello", "hi"] * 2


def test_a_key_is_for_one_turn(hub: Hub) -> None:
    with hub.session("s") as s:
        s.say_all(HELLO, key="t1")
        with pytest.raises(Invalid) as caught:
            s.say_all([("user", "something else")], key="t1")
        assert caught.value.kind == "key_reused"
        with pytest.raises(Invalid):
            s.say_all(HELLO, key=5)  # type: ignore[arg-type]


def test_turn_key_used_after_the_restored_commit_can_be_used_again(hub: Hub) -> None:
    with hub.session("s") as s:
        s.say_all([("user", "before")], key="t0")
        point = s.commit("before").oid
        s.say_all(HELLO, key="t1")
        s.restore(point)
        assert len(s.say_all([("user", "before")], key="t0")) == 1
        assert [message.content for message in s.messages()] == ["before"]
        s.say_all(HELLO, key="t1")
        assert [message.content for message in s.messages()] == ["before", "hello", "hi"]


def test_turn_keys_share_one_row_removed_with_the_session(hub: Hub) -> None:
    with hub.session("s") as s:
        for number in range(40):
            s.say_all([("user", str(number))], key=f"t{number}")
        s.say_all([("user", "39")], key="t39")
        assert len(s.messages()) == 40
    assert len(hub.catalog.rows("turns")) == 1
    hub.remove(s.id)
    assert hub.catalog.rows("turns") == []


def test_what_was_erased_leaves_no_trace_and_is_not_said_again(hub: Hub) -> None:
    with hub.session("s") as s:
        (event,) = s.say_all([("user", "my secret wish")], key="t1")
    hub.erase(s.id, seqs=[event.seq])
    with hub.session("s") as s:
        assert [one.seq for one in s.say_all([("user", "my secret wish")], key="t1")] == [event.seq]
        assert s.messages() == []


def test_same_turn_key_matches_after_its_text_became_a_known_secret(hub: Hub) -> None:
    said = [{"role": "user", "content": "open swordfish-4711", "name": "ann"}]
    with hub.session("s") as s:
        s.say_all(said, key="t1")
        hub.vault.put("door", "swordfish-4711")
        s.say_all(said, key="t1")
        s.say_all(said, key="t2")
        s.say_all(said, key="t2")
        assert len(s.messages()) == 2


def test_say_all_masks_a_secret_and_keeps_the_other_messages(hub: Hub) -> None:
    hub.vault.put("door", "swordfish-4711")
    with hub.session("s") as s:
        s.say_all([("user", "hello"), ("user", "open swordfish-4711"), ("assistant", "it is open")])
        assert contents(hub, s.id) == ["hello", "open [door]", "it is open"]
        with pytest.raises(Invalid):
            s.say_all([("user", "swordfish-4711"), ("user", {1})])
        assert len(s.messages()) == 3
