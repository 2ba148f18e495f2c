"""The public names of a session and of its facets are listed, and docstrings name the arguments."""

from __future__ import annotations

import inspect
import re

import pytest

from ortet.sessions.actions.accounting import Accounting
from ortet.sessions.actions.artifacts import ArtifactStore
from ortet.sessions.actions.session_actions import SessionActions
from ortet.sessions.conversation import Conversation
from ortet.sessions.environment.external_state import ExternalState
from ortet.sessions.machine.programs import SessionPrograms
from ortet.sessions.memory.session_memory import SessionMemory
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session

FACETS = {
    Conversation: "advance answer ask comments compact compactions decide decisions dropped "
    "export_messages messages note notes plan questions record records say say_all think",
    SessionMemory: "briefing context contradictions episodes fact fact_history facts forget learn "
    "lesson milestone recall refresh shared working",
    SessionActions: "act approvals effects intend request_approval settle unsettled",
    Accounting: "budget budget_left content limits model_call model_calls spend spent",
    ArtifactStore: "artifact artifact_data artifacts lineage orphans store_version",
    ExternalState: "browser collaborate collaborations token tokens window windows",
    SessionPrograms: "before_action before_commit before_move expose is_running job jobs kernel "
    "kernels logs ps run shell spawn unexpose",
}
FLAT = (
    "say say_all think note plan advance ask answer decide learn lesson forget recall facts "
    "context messages briefing act run spawn shell kernel artifact spend budget commit restore "
    "rewind undo "
    "redo fork swarm merge adopt land diff record records events milestone compact pause close "
    "whatif archive carry handover log drop artifacts checkpoint"
)

READER = (
    "accounting actions agent artifact_store artifacts briefing carry checkpoint context "
    "conversation effects environment events external facts goal handover head id internals log "
    "memory messages name recall records status step steps unsettled"
)
WRITER = (
    "act adopt advance answer archive artifact ask budget close commit compact decide diff drop "
    "finish forget fork kernel land learn lesson machine merge milestone note path pause plan "
    "programs record redo restore rewind run say say_all shell spawn spend swarm think undo whatif"
)


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize("facet", FACETS, ids=lambda facet: facet.__name__)
def test_the_names_of_a_facet_grow_only_on_purpose(facet: type) -> None:
    assert public(facet) == set(FACETS[facet].split())


def test_the_names_of_a_reader_and_of_a_session_grow_only_on_purpose() -> None:
    assert public(SessionReader) == set(READER.split())
    assert public(Session) == set(READER.split()) | set(WRITER.split())


@pytest.mark.parametrize("name", sorted(FLAT.split()))
def test_a_docstring_of_a_session_names_all_arguments(name: str) -> None:
    function = inspect.getattr_static(Session, name)
    text = inspect.getdoc(function) or ""
    assert text, f"{name} has no docstring"
    parameters = [one for one in inspect.signature(function).parameters if one != "self"]
    assert [one for one in parameters if not re.search(rf"\b{one}\b", text)] == []


@pytest.mark.parametrize("facet", FACETS, ids=lambda facet: facet.__name__)
def test_each_name_of_a_facet_has_a_docstring(facet: type) -> None:
    names = (name for name in public(facet) if not name.startswith("before_"))
    assert [n for n in names if not inspect.getdoc(inspect.getattr_static(facet, n))] == []
