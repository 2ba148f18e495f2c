"""Each event kind has one record, and every place that shows or folds events asks that record."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import msgspec
import pytest

import ortet
from ortet.cli.main import run
from ortet.errors import Invalid
from ortet.hub.governance.audit import audit_line
from ortet.hub.hub import Hub
from ortet.ids import Oid
from ortet.journal.event_chain import encode_body
from ortet.journal.events import Draft, Event
from ortet.journal.kinds import registry
from ortet.journal.kinds.event_kind import (
    CUSTOM_KIND,
    UNKNOWN_KIND,
    BriefingItems,
    BriefingSectionSpec,
    EventData,
    EventKind,
    ReasonText,
)
from ortet.journal.kinds.registry import EVENT_KINDS, kind_of
from ortet.journal.reports.progress import ProgressLog
from ortet.journal.state.records import NoteRecord
from ortet.journal.state.state import SessionState
from ortet.sessions.history.compare import explain_commit
from ortet.sessions.history.fork_session import rewind_before_event
from ortet.sessions.history.load import is_bookkeeping_event
from ortet.sessions.memory.recall import DOCUMENT_MAKERS
from ortet.sessions.session import Session
from ortet.sessions.writing.bulk_import import append_events
from ortet.sessions.writing.large_events import EventInput
from ortet.web.views.journal import EVENT_DETAILS, EVENT_TEXTS, GROUPS, journal_line

SOURCE = Path(ortet.__file__).parent
LISTS = {
    "journal/reports/progress.py": "kinds that change the progress itself",
    "sessions/environment/removal_rows.py": "external state that catalog rows repeat",
    "sessions/memory/recall.py": "one function for each indexed kind",
    "web/views/journal.py": "texts and details that need more than a line",
}
"""Module -> why it names several kinds. Each has a default for all others."""

STORED_NAMES = (
    *("message", "thought", "note", "question", "answer", "comment", "compaction", "aside"),
    *("goal", "plan", "step", "decision", "fact", "lesson", "episode", "begun", "ended"),
    *("asked", "given", "model", "artifact", "spend", "budget", "collaboration", "window"),
    *("token", "browser", "lifecycle", "environment", "merge", "record", "warning"),
)
"""Names in stores of yesterday. This list only grows."""

GOLDEN: list[dict[str, Any]] = json.loads(Path(__file__).with_name("golden.json").read_text())
"""Events with their stored bytes and their texts. Examples are only added."""


# a kind that only this test knows


class _RiskData(msgspec.Struct):
    id: str = ""
    text: str = ""
    level: int = 0


def _fold_risk(state: SessionState, event: Event, data: EventData) -> None:
    key = f"risk/{data['id']}"
    state.notes.set(key, NoteRecord(key, data["text"], seq=event.seq))


def _risk_text(data: EventData) -> str:
    return f"risk {data['level']}: {data['text']}"


def _risks(items: BriefingItems) -> list[NoteRecord]:
    return [note for note in items.state.notes if note.key.startswith("risk/")]


def _describe_risk(risk: NoteRecord) -> tuple[str, Any]:
    return str(risk.value), {"key": risk.key, "text": risk.value}


RISK = EventKind(
    name="risk",
    schema=_RiskData,
    reducer=_fold_risk,
    survives_rewind=True,
    milestone=True,
    importance=0.2,
    line=_risk_text,
    group="reasoning",
    progress=_risk_text,
    reason=ReasonText("risk", _risk_text),
    briefing=(BriefingSectionSpec(95, "risks", "Risks", 44, _risks, _describe_risk),),
)
DATA = {"id": "r1", "text": "the disk is full", "level": 3}
LINE = "risk 3: the disk is full"


@pytest.fixture
def risk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> EventKind:
    """A new kind with nothing but its record. A parameter changes fields of the record."""
    kind = msgspec.structs.replace(RISK, **getattr(request, "param", {}))
    monkeypatch.setitem(EVENT_KINDS, "risk", kind)
    return kind


@pytest.fixture
def session_with_risk(hub: Hub, risk: EventKind) -> Iterator[Session]:
    del risk
    with hub.session("s", goal="ship it") as session:
        yield session


def record_risk(session: Session) -> Event:
    (event,) = append_events(session, [EventInput("risk", DATA)])
    return event


def test_data_of_a_new_kind_is_checked_before_it_is_written(session_with_risk: Session) -> None:
    with pytest.raises(Invalid, match="this is no risk"):
        append_events(session_with_risk, [EventInput("risk", {**DATA, "level": "high"})])
    assert [event for event in session_with_risk.events() if event.kind == "risk"] == []


def test_an_event_of_a_new_kind_changes_the_state_and_is_loaded_again(hub: Hub) -> None:
    """A state that is stored and loaded equals the state that was folded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(EVENT_KINDS, "risk", RISK)
        with hub.session("s") as session:
            record_risk(session)
            assert session.conversation.notes() == {"risk/r1": "the disk is full"}
            session.commit()
        with hub.session("s") as again:
            assert again.conversation.notes() == {"risk/r1": "the disk is full"}


@pytest.mark.parametrize(
    ("risk", "survives"),
    [({"survives_rewind": True}, True), ({"survives_rewind": False}, False)],
    indirect=["risk"],
)
def test_the_record_says_whether_a_new_kind_survives_a_rewind(
    session_with_risk: Session, survives: bool
) -> None:
    first = session_with_risk.say("user", "first")
    second = session_with_risk.say("user", "second")
    record_risk(session_with_risk)
    rewind_before_event(session_with_risk, second.seq)
    assert [message.content for message in session_with_risk.messages()] == ["first"]
    assert [
        event.kind for event in session_with_risk.events(first.seq) if event.kind == "risk"
    ] == (["risk"] if survives else [])


def test_a_new_kind_has_a_section_in_the_briefing(session_with_risk: Session) -> None:
    record_risk(session_with_risk)
    briefing = session_with_risk.briefing(1000)
    assert "## Risks\n- the disk is full" in briefing.markdown
    assert briefing.data["risks"] == [{"key": "risk/r1", "text": "the disk is full"}]
    keys = list(briefing.data)
    assert keys.index("failed") < keys.index("decisions") < keys.index("risks") < keys.index("done")


def test_a_new_kind_is_shown_in_the_journal_the_audit_and_the_progress_log(
    session_with_risk: Session,
) -> None:
    event = record_risk(session_with_risk)
    assert audit_line(event).what == LINE
    line = journal_line(event)
    assert (line.text, line.group) == ("the disk is full", "reasoning")
    progress = ProgressLog()
    progress.feed([event])
    assert progress.log()[0].endswith(LINE)


def test_a_new_kind_is_shown_on_the_command_line(
    hub: Hub,
    risk: EventKind,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    del risk
    with hub.session("s") as session:
        record_risk(session)
    monkeypatch.setenv("ORTET_URL", hub.url)
    assert run(["journal", "s", "--kind", "risk"]) == 0
    assert capsys.readouterr().out.rstrip().endswith(f"risk  {LINE}")
    assert run(["--json", "journal", "s", "--kind", "risk"]) == 0
    assert [event["data"] for event in json.loads(capsys.readouterr().out)] == [DATA]


def test_a_new_kind_is_a_milestone_and_a_reason_of_the_commit(hub: Hub, risk: EventKind) -> None:
    del risk
    with hub.session("s", commit="milestone") as session:
        base = session.commit("base")
        record_risk(session)
        head = session.head
        assert head is not None and head.oid != base.oid
        reasons = explain_commit(hub.internals.services, Oid(bytes.fromhex(head.oid))).reasons
    assert [(reason.kind, reason.text) for reason in reasons] == [("risk", LINE)]


# the records of this release


def test_every_stored_name_has_one_record() -> None:
    names = [kind.name for family in registry._FAMILIES for kind in family.KINDS]
    assert sorted(names) == sorted(STORED_NAMES)
    assert [name for name, kind in EVENT_KINDS.items() if kind.name != name] == []


def test_custom_kinds_and_kinds_of_later_releases_have_a_default_record() -> None:
    assert kind_of("myapp.ticket") is CUSTOM_KIND
    assert kind_of("of_a_later_release") is UNKNOWN_KIND
    assert CUSTOM_KIND.survives_rewind and not UNKNOWN_KIND.survives_rewind
    assert CUSTOM_KIND.line({"x": 1}) == '{"x":1}'
    assert UNKNOWN_KIND.line({"x": 1}) == ""


def test_sections_of_a_briefing_have_different_keys_and_positions() -> None:
    specs = [spec for kind in EVENT_KINDS.values() for spec in kind.briefing]
    assert len({spec.key for spec in specs}) == len({spec.position for spec in specs}) == len(specs)


@pytest.mark.parametrize("example", GOLDEN, ids=lambda example: example["kind"])
def test_an_event_is_stored_and_shown_as_its_golden_example(example: dict[str, Any]) -> None:
    """`body` is the stored form. The texts are those that people and agents read."""
    name, data = example["kind"], example["data"]
    event, progress, reason = (
        Event(1, name, 0, "me", data, b""),
        ProgressLog(),
        kind_of(name).reason,
    )
    progress.feed([event])
    assert encode_body(Draft(name, data)).hex() == example["body"]
    assert audit_line(event).what == example["line"]
    assert [line[len("- 1970-01-01 00:00:00 ") :] for line in progress.log()] == (
        [example["progress"]] if example["progress"] else []
    )
    assert (reason and [reason.label, reason.text(data)]) == example["reason"]
    assert journal_line(event).group == example["group"]


def test_every_kind_has_a_golden_example() -> None:
    assert set(STORED_NAMES) <= {example["kind"] for example in GOLDEN}


@pytest.mark.parametrize("name", STORED_NAMES)
def test_every_kind_has_a_line_for_empty_data(name: str) -> None:
    """Data of another release may lack every field."""
    kind = kind_of(name)
    assert all(isinstance(text, str) for text in (kind.line({}), kind.words({})))
    assert isinstance(kind.bookkeeping({}), bool)
    if kind.reason is not None:
        assert isinstance(kind.reason.text({}), str)


def test_the_journal_page_renders_only_known_kinds_and_falls_back_for_all_others() -> None:
    assert set(EVENT_TEXTS) == {"message", "spend", "plan", "lifecycle"}
    assert set(EVENT_DETAILS) == {"decision", "fact", "lesson", "spend", "ended"}
    assert {kind.group for kind in EVENT_KINDS.values()} == set(GROUPS)
    for name in STORED_NAMES:
        line = journal_line(Event(1, name, 1, "me", {"text": "a text"}, b""))
        assert line.group == kind_of(name).group
        assert line.text == "a text" or name in EVENT_TEXTS


def test_every_indexed_kind_has_a_document_for_recall() -> None:
    indexed = {name for name, kind in EVENT_KINDS.items() if kind.indexed}
    assert indexed == set(DOCUMENT_MAKERS)


def test_only_lifecycle_and_automatic_environment_events_are_bookkeeping() -> None:
    events = [Event(1, name, 1, "me", {}, b"") for name in STORED_NAMES]
    assert [event.kind for event in events if is_bookkeeping_event(event)] == [
        "lifecycle",
        "environment",
    ]
    assert not is_bookkeeping_event(Event(1, "environment", 1, "me", {"asked": True}, b""))


def kind_lists(tree: ast.Module) -> Iterator[list[str]]:
    """Yield the names in each literal or match statement that names three kinds or more."""
    for node in ast.walk(tree):
        parts: Sequence[ast.AST | None] = ()
        if isinstance(node, ast.Set | ast.Tuple | ast.List):
            parts = node.elts
        elif isinstance(node, ast.Dict):
            parts = node.keys
        elif isinstance(node, ast.Match):
            parts = [case.pattern.value for case in node.cases if is_text_case(case.pattern)]
        names = [part.value for part in parts if isinstance(part, ast.Constant)]
        if len(names) >= 3 and set(names) <= set(STORED_NAMES):
            yield [str(name) for name in names]


def is_text_case(pattern: ast.pattern) -> TypeGuard[ast.MatchValue]:
    return isinstance(pattern, ast.MatchValue)


def test_no_other_module_has_a_list_of_event_kinds() -> None:
    """A new kind would be missing from such a list without an error."""
    modules = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if path.parent != SOURCE / "journal" / "kinds"
        and any(kind_lists(ast.parse(path.read_text())))
    }
    assert modules == set(LISTS)
