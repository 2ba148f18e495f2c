"""Deeds that are done elsewhere: the intent is durable before, and somebody says what became."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortet.config.environment import open_hub
from ortet.errors import Conflict, Invalid, Refused, Unsettled
from ortet.hub.hub import Hub


def test_intended_effect_is_recorded_and_settled_once(hub: Hub) -> None:
    with hub.session("s") as s:
        begun = s.actions.intend("mail", ["ann"], {"kind": "welcome"}, why="she asked", key="m1")
        assert (begun.done, begun.effect.state) == (False, "begun")
        other = hub.get(s.id)
        assert [effect.id for effect in other.effects()] == [begun.effect.id]
        told = next(event for event in other.events() if event.kind == "begun")
        assert (told.data["args"], told.data["kwargs"]) == (["ann"], {"kind": "welcome"})
        s.actions.settle(begun.effect.id, {"sent": True})
        again = s.actions.intend("mail", ["ann"], {"kind": "welcome"}, key="m1")
        assert (again.done, again.outcome) == (True, {"sent": True})
        assert [effect.state for effect in s.effects()] == ["done"]
        with pytest.raises(Conflict, match="nothing to settle"):
            s.actions.settle(begun.effect.id, {"sent": False})


def test_unsettled_effect_is_not_retried_until_its_outcome_is_recorded(store: Path) -> None:
    with open_hub(store) as hub, hub.session("s") as s:
        first = s.actions.intend("pay", [7], key="invoice", replay="once").effect.id
        with pytest.raises(Unsettled):
            s.actions.intend("pay", [7], key="invoice", replay="once")
        assert s.actions.intend("look", key="page", replay="idempotent").effect.id == (
            s.actions.intend("look", key="page", replay="idempotent").effect.id
        )
    with open_hub(store) as hub, hub.session("s") as s:
        with pytest.raises(Unsettled):
            s.actions.intend("pay", [7], key="invoice", replay="once")
        s.actions.settle(first, error="ConnectionError: the bank was away")
        states = {effect.id: effect.state for effect in s.effects()}
        assert states[first] == "failed"
        assert s.actions.intend("pay", [7], key="invoice", replay="once").effect.id == first


def test_settle_with_an_error_records_a_failed_effect(hub: Hub) -> None:
    with hub.session("s") as s:
        effect = s.actions.intend("mail").effect.id
        event = s.actions.settle(effect, error="no such person")
        assert (event.data["state"], event.data["error"]) == ("failed", "no such person")
        assert "no such person" in str(s.briefing())


def test_intend_requires_approval_and_remaining_budget(hub: Hub) -> None:
    with hub.session("s") as s:
        with pytest.raises(Refused) as caught:
            s.actions.intend("deploy", approve="it is Friday")
        hub.approve(s.id, caught.value.details["id"], by="ann")
        assert s.actions.intend("deploy", approve="it is Friday").effect.state == "begun"
    with hub.session("poor", budget={"usd": 1}) as s, pytest.raises(Refused):
        s.spend(usd=2)
    with hub.session("poor") as s, pytest.raises(Refused) as caught:
        s.actions.intend("buy")
    assert caught.value.kind == "budget_spent"


def test_settling_an_effect_counts_as_the_end_of_an_action_for_commit_policy(hub: Hub) -> None:
    with hub.session("s", commit="action") as s:
        effect = s.actions.intend("mail").effect.id
        assert s.head is None
        s.actions.settle(effect, "sent")
        assert s.head is not None


def test_intended_effect_with_a_key_is_done_once_across_forks(hub: Hub) -> None:
    with hub.session("s") as s:
        (fork,) = s.fork(1)
        effect = s.actions.intend("mail", key="k").effect.id
        with pytest.raises(Conflict, match="being done"):
            fork.actions.intend("mail", key="k")
        s.actions.settle(effect, 5)
        assert fork.actions.intend("mail", key="k").outcome == 5


def test_intend_with_bad_arguments_or_in_a_replay_is_refused(hub: Hub) -> None:
    with hub.session("s") as s:
        s.say("user", "hi")
        with pytest.raises(Invalid, match="give key="):
            s.actions.intend("x", replay="idempotent")
        with pytest.raises(Invalid, match="replay="):
            s.actions.intend("x", replay="twice")  # type: ignore[arg-type]
        for wrong in (5, "x", None):
            with pytest.raises(Invalid):
                s.actions.intend("x", wrong)  # type: ignore[arg-type]
        assert s.effects() == []
    with hub.session("s", replay=True) as s, pytest.raises(Refused, match="a replay cannot"):
        s.actions.intend("x")
