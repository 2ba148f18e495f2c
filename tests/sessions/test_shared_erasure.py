"""What can go from a store that hosts share, and what cannot: sessions, and single messages."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from tests.fixtures.postgres import shared
from tests.fixtures.stores import OpenAs

from ortet.config.environment import open_hub
from ortet.errors import Invalid, NotFound, Refused, Unsupported
from ortet.hub.hub import Hub
from ortet.objects.gc import sweep_remote

WORDS = "the door code is 4711"


def packs(hub: Hub) -> set[str]:
    return {found.key for found in hub.bucket.list("packs/")}


def test_a_removed_session_is_gone_on_every_host(
    host: OpenAs, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_remote, "GRACE", -3600.0)  # an hour later
    one, two = host("one"), host("two")
    with one.session("kept") as s:
        s.say("user", "stays")
        s.commit("kept")
    before = packs(one)
    with one.session("s") as s:
        s.say("user", WORDS)
        commit = s.commit("told")
    two.log(commit.oid)
    assert two.get("s").messages()[-1].content == WORDS  # and keeps what it read
    its = packs(one) - before
    assert its
    one.remove(s.id)
    one.sweep(expire_ns=0)
    assert its.isdisjoint(packs(one))
    for hub in (one, two, host("three")):
        with pytest.raises(NotFound):
            hub.log(commit.oid)
        assert [m.content for m in hub.get("kept").messages()] == ["stays"]
    with psycopg.connect(shared().url()) as connection:
        row = connection.execute(
            f'SELECT count(*) FROM "{schema}".timelines WHERE id = %s', (s.internals.row.timeline,)
        ).fetchone()
    assert row == (0,)
    one.verify()


def test_erase_in_a_shared_store_is_unsupported_and_names_the_alternative(host: OpenAs) -> None:
    hub = host("one")
    with hub.session("s") as s:
        s.say("user", WORDS)
        s.commit("told")
    with pytest.raises(Unsupported, match="ortet session rm") as caught:
        hub.erase(s.id)
    assert caught.value.kind == "shared_store"
    hub.governance.retention("default", keep_messages=0.0)
    for dry_run in (True, False):
        deeds = hub.governance.retain(dry_run=dry_run).deeds
        assert "nothing is erased" in deeds[0].why
        assert deeds[0].what == "keep"
    assert [m.content for m in hub.get("s").messages()] == [WORDS]


def test_carry_signed_on_one_host_is_accepted_on_another(host: OpenAs) -> None:
    with host("one").session("s") as s:
        s.say("user", "hello")
        text = s.carry()
    with host("two").transfer.from_carry(text) as s:
        assert [m.content for m in s.messages()] == ["hello"]
    changed = text.replace(text[40], "A" if text[40] != "A" else "B", 1)
    with pytest.raises((Invalid, Refused)):
        host("two").transfer.from_carry(changed)


def test_pushed_session_keeps_its_erased_events_erased(host: OpenAs, tmp_path: Path) -> None:
    with open_hub(tmp_path / "laptop") as laptop:
        with laptop.session("s") as s:
            s.say("user", WORDS)
            s.say("user", "hello")
            s.commit("told")
        seq = next(event.seq for event in s.events() if event.kind == "message")
        laptop.erase(s.id, seqs=[seq])
        team = host("one")
        laptop.push(team)
        team.verify()
    with host("two").session("mine") as mine:
        mine.adopt("s")
        assert [m.content for m in mine.messages()] == ["hello"]
