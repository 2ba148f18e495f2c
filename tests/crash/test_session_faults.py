"""kill -9 at every fault point of every verb of a session, then the program is started again.

Between the two the store verifies and holds all that was acknowledged; behind them everything is as
if nobody had been killed.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.crash.points import SESSION, check_points
from tests.crash.running import run
from tests.crash.saying import marks
from tests.crash.session_toil import dangling
from tests.crash.session_verbs import NAME, TESTED
from tests.fixtures.prepared import Prepared

import ortet
from ortet.hub.hub import Hub
from ortet.sessions.reader import SessionReader

SOAK = int(os.environ.get("ORTET_SOAK", "1"))
OWN = (
    "action.",
    "archive.",
    "artifact.",
    "budget.",
    "commit.after-move",
    "compact.",
    "consolidate.",
    "erase.",
    "fork.",
    "inbox.",
    "journal.",
    "open.",
    "publish.",
    "remove.",
    "restore.",
    "retain.",
    "thaw.journaled",
)
"""Points of the session itself; those of the store below it have tests of their own, and come in
when the campaign is run whole."""


def faults_of(verb: str) -> list[str]:
    """NAME:kill:N of all faults that are tried; more of them in a soak."""
    found = SESSION.get(verb, {})
    if SOAK == 1:
        return [f"{name}:kill:1" for name in found if name.startswith(OWN)]
    return [
        f"{name}:kill:{nth}"
        for name, count in found.items()
        for nth in sorted({*range(1, min(count, SOAK) + 1), count})
    ]


class Stage:
    """The prepared store, and what each verb makes of it when nobody is killed."""

    def __init__(self, store: Prepared) -> None:
        self.base = store.base
        self.reset = store.put_back
        self.done = cache(self._done)

    def _done(self, verb: str) -> dict[str, Any]:
        self.reset()
        assert run(verb, self.base).code == 0
        return self.portrait()

    def portrait(self) -> dict[str, Any]:
        with ortet.open(self.base / "store") as hub:
            hub.verify()
            rows = {x.name: x for x in hub.sessions()}
            found: dict[str, Any] = {}
            for name, row in rows.items():
                for key, value in self._of(hub, hub.get(row.id)).items():
                    found[f"{name} {key}"] = value
            found["shared"] = {
                known.name: (
                    sorted(fact.text for fact in known.mind.facts),
                    len(list(known.mind.past)),
                    sorted(episode.summary for episode in known.mind.episodes),
                )
                for known in hub.internals.services.scopes.all()
            }
        files = sorted(path for path in (self.base / "work").rglob("*") if path.is_file())
        found["files"] = {path.name: path.read_text() for path in files}
        found["deeds"] = deeds = Counter(words[1] for words in marks(self.base / "deeds"))
        for again in ("do-pure", "do-idempotent"):  # they may be done again
            deeds[again] = min(deeds[again], 1)
        return found

    @staticmethod
    def _of(hub: Hub, view: SessionReader) -> dict[str, Any]:
        hub.audit(view.id)
        assert not dangling(view.messages())
        return {
            # what a killed process had open is active until somebody opens it
            "status": view.status.replace("active", "paused"),
            "messages": [(m.role, m.content) for m in view.messages()],
            "summary": bool(view.conversation.compactions()),
            "facts": [fact.text for fact in view.facts()],
            "decisions": [decision.text for decision in view.conversation.decisions()],
            "plan": (view.steps, view.step),
            "notes": view.conversation.notes(),
            "artifacts": [
                (a.name, view.artifact_store.artifact_data(a.name, a.version))
                for a in view.artifacts()
            ],
            "approvals": [(a.state, bool(a.used)) for a in view.actions.approvals()],
            "done": sorted({e.name for e in view.effects() if e.state == "done"}),
            "unsettled": [e.name for e in view.effects() if e.state == "unsettled" and e.key],
            "spent": view.accounting.spent(),
            "left": view.accounting.budget_left(),
            "comments": [e.data.get("text") for e in view.conversation.comments()],
            "head": view.head.message if view.head else None,
        }


@pytest.fixture(scope="session")
def stage(session_store: Prepared) -> Stage:
    return Stage(session_store)


def check_kept(base: Path, kept: list[list[Any]], verb: str) -> None:
    with ortet.open(base / "store") as hub:
        hub.verify()
        for row in hub.sessions():
            hub.audit(row.id)
        if verb != "remove":
            view = hub.get(next(x.id for x in hub.sessions() if x.name == NAME))
            there = {(e.timeline, e.seq): e.hash.hex() for e in view.internals.event_log.events()}
            for timeline, seq, hash_ in kept:
                assert there.get((timeline, seq), hash_) == hash_
                if (timeline, seq) not in there:  # on a timeline that was restored away
                    (found,) = hub.catalog.events(timeline, seq - 1, 1)
                    assert hub.objects.hasher.oid(found.head).hex() == hash_


@pytest.mark.parametrize("verb", TESTED)
@pytest.mark.soak
def test_verb_reaches_exactly_the_listed_fault_points(verb: str, stage: Stage) -> None:
    stage.reset()
    ended = run(verb, stage.base, points=True)
    assert ended.code == 0
    check_points(f'SESSION["{verb}"]', SESSION.get(verb), dict(Counter(ended.points())))
    assert faults_of(verb)


@pytest.mark.parametrize(
    ("verb", "fault"), [(verb, fault) for verb in TESTED for fault in faults_of(verb)]
)
@pytest.mark.soak
def test_verb_killed_at_any_point_can_be_retried_with_the_same_result(
    verb: str, fault: str, stage: Stage
) -> None:
    done = stage.done(verb)
    stage.reset()
    ended = run(verb, stage.base, fault=fault)
    assert ended.killed
    check_kept(stage.base, ended.of("kept"), verb)
    assert run(verb, stage.base).code == 0
    again = stage.portrait()
    for part in (*done, *again):
        assert again.get(part) == done.get(part), part
