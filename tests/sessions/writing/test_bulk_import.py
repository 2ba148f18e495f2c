"""What happened elsewhere, told afterwards: deeds, artifacts and money in one step."""

from __future__ import annotations

from pathlib import Path

import pytest

import ortet
from ortet.errors import Invalid, Refused
from ortet.journal.events import Draft
from ortet.sessions.writing.bulk_import import (
    PastSpend,
    fork_named_after_event,
    import_events,
    restore_after_event,
)

BEGUN = {"name": "mail", "replay": "recorded", "key": "", "scope": "family", "why": "to tell"}
FILE = {"name": "a.py", "oid": "", "size": 0, "kind": "file", "link": "a.py", "action": "e1"}
DAY = 1_772_442_000_000_000_000  # 2026-03-02


def begun(id_: str) -> Draft:
    return Draft("begun", {**BEGUN, "id": id_, "args": [], "kwargs": {"to": "ann"}})


def test_retell_records_all_events_and_spending_or_nothing(tmp_path: Path) -> None:
    with ortet.open(str(tmp_path / "store")) as hub, hub.session("s") as session:
        ended = Draft("ended", {"id": "e1", "state": "done", "outcome": "sent"})
        drafts = [begun("e1"), ended, Draft("artifact", FILE), Draft("artifact", FILE), begun("e2")]
        import_events(session, drafts, PastSpend({"tokens": 7}, "model-1", DAY))
        assert [(one.id, one.state) for one in session.effects()] == [
            ("e1", "done"),
            ("e2", "begun"),
        ]
        assert [one.version for one in session.artifacts()] == [1, 2]
        assert session.artifact_store.lineage("a.py").why == "to tell"
        assert session.accounting.spent() == {"tokens": 7}
        assert [one.key for one in hub.bill(by="day")] == ["2026-03-02"]
        before = list(session.events())
        with pytest.raises(Invalid):
            import_events(
                session, [begun("e3"), Draft("message", {"role": 7})], PastSpend({"tokens": 1})
            )
        assert list(session.events()) == before
        assert session.accounting.spent() == {"tokens": 7}
        import_events(
            session, [Draft("ended", {"id": "e2", "state": "failed", "error": "no route"})]
        )
        assert [one.state for one in session.effects()] == ["done", "failed"]
        hub.verify()


def test_retell_over_budget_is_recorded_and_raises(tmp_path: Path) -> None:
    with ortet.open(str(tmp_path / "store")) as hub:
        session = hub.session("s", budget={"tokens": 5})
        with pytest.raises(Refused):
            import_events(session, [begun("e1")], PastSpend({"tokens": 9}))
        assert hub.get("s").accounting.spent() == {"tokens": 9}
        assert [one.id for one in hub.get("s").effects()] == ["e1"]


def test_branch_off_and_go_back_work_from_any_event(tmp_path: Path) -> None:
    with ortet.open(str(tmp_path / "store")) as hub, hub.session("s") as session:
        events = session.say_all([("user", "one"), ("assistant", "two"), ("user", "three")])
        with fork_named_after_event(session, events[1].seq, "left") as left:
            left.say("user", "another")
        restore_after_event(session, events[0].seq)
        session.say("user", "else")
        assert [one.content for one in session.messages()] == ["one", "else"]
        found = [one.content for one in hub.get("s/left").messages()]
        assert found == ["one", "two", "another"]
        hub.verify()
