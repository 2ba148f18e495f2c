"""Every public verb of sessions, views and hubs is an operation, or it is said why it is none."""

from __future__ import annotations

import pytest

from ortet.hub.governance.service import Governance
from ortet.hub.hub import Hub
from ortet.hub.maintenance import Maintenance
from ortet.hub.memory_queries import MemoryQueries
from ortet.hub.transfer import Transfer
from ortet.server.operations.registry import operations
from ortet.server.transfers.routes import STREAMING_ROUTES
from ortet.sessions.actions.accounting import Accounting
from ortet.sessions.actions.artifacts import ArtifactStore
from ortet.sessions.actions.session_actions import SessionActions
from ortet.sessions.conversation import Conversation
from ortet.sessions.environment.external_state import ExternalState
from ortet.sessions.machine.programs import SessionPrograms
from ortet.sessions.memory.session_memory import SessionMemory
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session

READ = {
    **dict.fromkeys(("id", "name", "agent", "status", "head", "goal"), "show_session"),
    **dict.fromkeys(("steps", "step"), "show_plan"),
    **dict.fromkeys(("limits", "spent", "budget_left"), "show_budget"),
    "approvals": "approvals all_approvals",
    "artifact_data": "get_artifact",
    "artifacts": "list_artifacts",
    "briefing": "briefing",
    "browser": "show_browser browser",
    "carry": "carry",
    "checkpoint": "checkpoint",
    "collaborations": "list_collaborations",
    "comments": "comments",
    "compactions": "compactions",
    "content": "show_model_call",
    "context": "context shaped_context",
    "contradictions": "contradictions",
    "decisions": "decisions",
    "dropped": "dropped",
    "effects": "effects actions",
    "unsettled": "effects",
    "environment": "show_environment environment compare_environment",
    "episodes": "list_episodes",
    "events": "list_events show_event journal_stream",
    "export_messages": "export_session",
    "fact": "show_fact",
    "fact_history": "fact_history",
    "facts": "list_facts",
    "handover": "handover",
    "lineage": "lineage",
    "log": "list_commits",
    "messages": "list_messages",
    "model_calls": "model_calls show_model_call",
    "notes": "notes",
    "questions": "questions",
    "recall": "recall",
    "records": "records",
    "shared": "shared",
    "token": "token",
    "tokens": "list_tokens",
    "windows": "list_windows",
    "working": "working",
}

WRITTEN = {
    "act": "act settle",
    "adopt": "adopt",
    "advance": "advance",
    "answer": "answer",
    "archive": "archive",
    "artifact": "artifact put_artifact",
    "ask": "ask_question",
    "budget": "budget",
    "close": "pause",
    "collaborate": "collaborate",
    "commit": "commit",
    "compact": "compact",
    "decide": "decide",
    "diff": "diff diff_own diff_present",
    "drop": "remove",
    "expose": "expose",
    "finish": "close",
    "forget": "forget",
    "fork": "fork",
    "intend": "act",
    "is_running": "list_processes",
    "job": "show_job read_output write_input resize send_signal wait_for stop_job output_stream",
    "jobs": "list_jobs",
    "kernel": "run_code interrupt close_kernel fork_kernel keep_fork declare_vars",
    "kernels": "list_kernels",
    "land": "land",
    "learn": "learn",
    "lesson": "lesson",
    "logs": "logs",
    "machine": "show_machine start_machine list_present get_present put_present",
    "merge": "merge",
    "milestone": "milestone",
    "model_call": "model_call",
    "note": "note",
    "orphans": "orphans",
    "pause": "pause",
    "plan": "plan",
    "ps": "list_processes",
    "record": "record",
    "redo": "redo",
    "refresh": "refresh",
    "request_approval": "request_approval",
    "restore": "restore",
    "rewind": "rewind",
    "run": "run",
    "say": "say",
    "say_all": "say_all take_turn",
    "settle": "settle",
    "shell": "shell",
    "spawn": "spawn",
    "spend": "spend",
    "swarm": "begin_swarm resume_swarm show_swarm stop_swarm swarm_stream",
    "think": "think",
    "undo": "undo",
    "unexpose": "unexpose",
    "whatif": "whatif",
    "window": "window",
}

STORE = {
    "approve": "approve deny",
    "archive": "archive",
    "audit": "audit read_journal",
    "bill": "show_bill",
    "branches": "list_branches",
    "comment": "comment",
    "diff": "diff",
    "diff_runs": "diff_runs",
    "drop": "drop",
    "erase": "erase erase_user",
    "export": "read_bundle",
    "get": "show_session",
    "import_": "send_bundle",
    "is_open": "show_session",
    "log": "list_all_commits list_commits",
    "recall": "recall_anywhere",
    "remove": "remove",
    "restore": "write_out read_file list_files",
    "session": "begin resume",
    "sessions": "list_sessions",
    "show": "show_commit show_own_commit",
    "swarms": "list_swarms show_swarm",
    "sweep": "sweep",
    "tag": "make_tag",
    "tags": "list_tags",
    "turn": "turn take_turn",
    "unarchive": "unarchive",
    "vault": "list_secrets put_secret forget_secret",
    "verify": "verify",
    "whatif": "whatif",
    "workspace": "begin",
}

_WITHIN = "one half of the library calls it on the other"
_CARE = "the server sees to it by itself"
_TWO_STORES = "between two stores: whoever can reach both does it"

FACETS = "a facet, whose verbs are operations"

LOCAL = {
    **dict.fromkeys(
        ("conversation", "memory", "actions", "accounting", "artifact_store", "external"), FACETS
    ),
    "programs": FACETS,
    "internals": _WITHIN,
    # views and sessions
    "path": "where the server's host has the files: clients read them over HTTP",
    # facets
    **dict.fromkeys(("before_action", "before_commit", "before_move"), _CARE),
    "store_version": _WITHIN,
}

LOCAL_TRANSFER = dict.fromkeys(("pull", "push"), _TWO_STORES)
LOCAL_STORE = {
    "internals": _WITHIN,
    "close": _CARE,
    **LOCAL_TRANSFER,
    **dict.fromkeys(("maintenance", "transfer", "governance", "memory"), FACETS),
}

LOCAL_MAINTENANCE = {"backup": "writes a directory of the host: `ortet backup` beside the server"}
MAINTENANCE = {
    "drop": "drop",
    "leftovers": "doctor",
    "sweep": "sweep",
    "tidy": "sweep",
    "verify": "verify",
}
GOVERNANCE = {
    "archive": "archive",
    "audit": "audit read_journal",
    "bill": "show_bill",
    "erase": "erase erase_user",
    "export_jsonl": "dataset",
    "hold": "hold list_holds",
    "release": "release",
    "remove": "remove",
    "retain": "retain",
    "retention": "set_retention show_retention list_retention",
    "unarchive": "unarchive",
}
MEMORY = {
    "consolidate": "consolidate",
    "diff": "memory_diff",
    "episodes": "all_episodes",
    "recall": "recall_anywhere",
}
TRANSFER = {
    "export": "read_bundle",
    "from_carry": "turn check_carry",
    "from_checkpoint": "from_checkpoint",
    "import_": "send_bundle",
}

READING_FACETS = (
    Conversation,
    SessionMemory,
    SessionActions,
    Accounting,
    ArtifactStore,
    ExternalState,
)
SURFACES = {
    SessionReader: {**READ, **LOCAL},
    Session: {**READ, **WRITTEN, **LOCAL},
    Hub: {**STORE, **LOCAL_STORE},
    Maintenance: {**MAINTENANCE, **LOCAL_MAINTENANCE},
    Governance: GOVERNANCE,
    MemoryQueries: MEMORY,
    Transfer: {**TRANSFER, **LOCAL_TRANSFER},
}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def verbs(kind: type) -> set[str]:
    """The public names of a class; those of a session include the names of its facets."""
    facets = (*READING_FACETS, SessionPrograms) if kind is Session else ()
    return public(kind).union(*map(public, facets))


@pytest.mark.parametrize("kind", SURFACES, ids=lambda kind: kind.__name__)
def test_every_public_verb_is_an_operation_or_listed_as_local(kind: type) -> None:
    missing = verbs(kind) - SURFACES[kind].keys()
    assert not missing, f"{kind.__name__}: neither an operation nor a reason for {sorted(missing)}"


def test_coverage_table_names_no_removed_verb() -> None:
    for kind in (Session, Hub, Maintenance, Governance, MemoryQueries, Transfer):
        assert SURFACES[kind].keys() <= verbs(kind)
    assert READ.keys() <= public(SessionReader).union(*map(public, READING_FACETS))


def test_coverage_table_names_only_existing_operations() -> None:
    known = {one.name for one in operations()} | {one.name for one in STREAMING_ROUTES}
    for table in (READ, WRITTEN, STORE, MAINTENANCE, GOVERNANCE, MEMORY, TRANSFER):
        for verb, names in table.items():
            assert not set(names.split()) - known, verb


def test_no_verb_is_both_an_operation_and_local() -> None:
    assert not {**READ, **WRITTEN}.keys() & LOCAL.keys()
    assert not STORE.keys() & LOCAL_STORE.keys()
