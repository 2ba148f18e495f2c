"""Ortet: git for the whole AI agent.

Start with `ortet.open()`, which returns a `Hub`. `hub.session(name)` opens the session of an agent,
`hub.workspace(path)` makes a directory a workspace.

Every class whose instances a public method returns, and every error, is importable from here. All
names except the errors are imported at first use, so that `import ortet` stays fast.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ortet.errors import (
    Conflict,
    Corrupt,
    Diverged,
    Invalid,
    NotDone,
    NotFound,
    OrtetError,
    RecordedFailure,
    Refused,
    Unavailable,
    Unsettled,
    Unsupported,
)

if TYPE_CHECKING:
    from ortet.history.commits import CommitInfo
    from ortet.history.diff.tree_diff import TreeChange
    from ortet.history.transfer.bundle import BundleReport
    from ortet.hub.backup import BackupReport
    from ortet.hub.governance.audit import AuditReport
    from ortet.hub.governance.legal_holds import Hold
    from ortet.hub.governance.retention import RetainReport, RetentionPolicy
    from ortet.hub.governance.tombstones import ErasureReceipt
    from ortet.hub.hub import Hub
    from ortet.hub.transfer import TransferReport
    from ortet.journal.conversation.compaction import Compaction
    from ortet.journal.conversation.context import ModelContext
    from ortet.journal.environment import Environment, EnvironmentDifference
    from ortet.journal.events import Event
    from ortet.journal.replay.run_diff import RunDiff
    from ortet.journal.reports.briefing import Briefing
    from ortet.journal.reports.checkpoint import AgentCheckpoint
    from ortet.journal.state.merge import Contradiction
    from ortet.journal.state.records import (
        Approval,
        Artifact,
        Collaboration,
        Decision,
        Effect,
        Episode,
        Fact,
        Message,
        Question,
        RateLimitWindow,
        ServiceToken,
    )
    from ortet.journal.upcasts import upcast
    from ortet.machines.base import Loss, Report, Result
    from ortet.machines.cleanup import Leftover
    from ortet.machines.jobs import Job, JobInfo, ProcessInfo, StreamChunk
    from ortet.machines.kernels.kernel import Kernel
    from ortet.machines.kernels.link import CellResult, KernelVariable
    from ortet.memory.embedders.base import Embedder
    from ortet.memory.working import WorkingMemory
    from ortet.objects.gc.sweep import SweepReport
    from ortet.objects.gc.verify import VerifyReport
    from ortet.sessions.actions.accounting import ModelCall
    from ortet.sessions.actions.actions import action, by_arguments
    from ortet.sessions.actions.artifacts import Lineage, Orphans, StoredContent
    from ortet.sessions.actions.bill import Bill
    from ortet.sessions.actions.effects import Intent
    from ortet.sessions.conversation import SessionPlan
    from ortet.sessions.environment.external_state import Browser
    from ortet.sessions.environment.handover import Handover
    from ortet.sessions.history.merge import SessionMergeResult
    from ortet.sessions.machine.kernels import SessionKernel
    from ortet.sessions.memory.consolidate import ConsolidationReport
    from ortet.sessions.memory.report import MemoryDiff
    from ortet.sessions.memory.shared_scopes import SharedScope
    from ortet.sessions.reader import SessionReader
    from ortet.sessions.results import ArchiveRecord, RecallHit, RecallResult
    from ortet.sessions.session import Session
    from ortet.sessions.swarm_api import Attempt, SwarmResult
    from ortet.sessions.table import SessionRow
    from ortet.vault.vault import Secret, Vault
    from ortet.workspaces.merge import MergeResult
    from ortet.workspaces.results import RestoreResult
    from ortet.workspaces.undo import UndoResult
    from ortet.workspaces.workspace import Workspace, WorkspaceStatus

__version__ = "0.1.0"

__all__ = [
    "AgentCheckpoint",
    "Approval",
    "ArchiveRecord",
    "Artifact",
    "Attempt",
    "AuditReport",
    "BackupReport",
    "Bill",
    "Briefing",
    "Browser",
    "BundleReport",
    "CellResult",
    "Collaboration",
    "CommitInfo",
    "Compaction",
    "Conflict",
    "ConsolidationReport",
    "Contradiction",
    "Corrupt",
    "Decision",
    "Diverged",
    "Effect",
    "Embedder",
    "Environment",
    "EnvironmentDifference",
    "Episode",
    "ErasureReceipt",
    "Event",
    "Fact",
    "Handover",
    "Hold",
    "Hub",
    "Intent",
    "Invalid",
    "Job",
    "JobInfo",
    "Kernel",
    "KernelVariable",
    "Leftover",
    "Lineage",
    "Loss",
    "MemoryDiff",
    "MergeResult",
    "Message",
    "ModelCall",
    "ModelContext",
    "NotDone",
    "NotFound",
    "Orphans",
    "OrtetError",
    "ProcessInfo",
    "Question",
    "RateLimitWindow",
    "RecallHit",
    "RecallResult",
    "RecordedFailure",
    "Refused",
    "Report",
    "RestoreResult",
    "Result",
    "RetainReport",
    "RetentionPolicy",
    "RunDiff",
    "Secret",
    "ServiceToken",
    "Session",
    "SessionKernel",
    "SessionMergeResult",
    "SessionPlan",
    "SessionReader",
    "SessionRow",
    "SharedScope",
    "StoredContent",
    "StreamChunk",
    "SwarmResult",
    "SweepReport",
    "TransferReport",
    "TreeChange",
    "Unavailable",
    "UndoResult",
    "Unsettled",
    "Unsupported",
    "Vault",
    "VerifyReport",
    "WorkingMemory",
    "Workspace",
    "WorkspaceStatus",
    "__version__",
    "action",
    "by_arguments",
    "open",
    "upcast",
]


def open(
    url: str | os.PathLike[str] | None = None, *, embedder: Embedder | str | None = None
) -> Hub:
    """Open a store. It is created if it does not exist.

    Args:
        url: A directory, "postgresql://…?bucket=s3://…" or "http://host:port". The default is
            $ORTET_URL, then the nearest .ortet file, then the user's data directory.
        embedder: Finds memories by meaning, too: "wordllama", "minilm" or one of your own.

    Returns:
        The open hub. Leaving its `with` block closes it.

    Raises:
        Invalid: If the URL or the embedder is not valid.
        NotFound: If the nearest .ortet file names a store that does not exist.
        Unavailable: If a server of the store does not answer.
        Unsupported: If the URL needs an extra that is not installed.

    Example:
        with ortet.open() as hub, hub.session("fix-42", goal="make the suite green") as s:
            s.say("user", "the login test fails")
    """
    from ortet.config.environment import (
        open_hub,  # lazily: `ortet --version` must not load a database
    )

    return open_hub(url, embedder=embedder)


_LAZY = {
    "AgentCheckpoint": "ortet.journal.reports.checkpoint",
    "Approval": "ortet.journal.state.records",
    "ArchiveRecord": "ortet.sessions.results",
    "Artifact": "ortet.journal.state.records",
    "Attempt": "ortet.sessions.swarm_api",
    "AuditReport": "ortet.hub.governance.audit",
    "BackupReport": "ortet.hub.backup",
    "Bill": "ortet.sessions.actions.bill",
    "Briefing": "ortet.journal.reports.briefing",
    "Browser": "ortet.sessions.environment.external_state",
    "BundleReport": "ortet.history.transfer.bundle",
    "CellResult": "ortet.machines.kernels.link",
    "Collaboration": "ortet.journal.state.records",
    "CommitInfo": "ortet.history.commits",
    "Compaction": "ortet.journal.conversation.compaction",
    "ConsolidationReport": "ortet.sessions.memory.consolidate",
    "Contradiction": "ortet.journal.state.merge",
    "Decision": "ortet.journal.state.records",
    "Effect": "ortet.journal.state.records",
    "Embedder": "ortet.memory.embedders.base",
    "Environment": "ortet.journal.environment",
    "EnvironmentDifference": "ortet.journal.environment",
    "Episode": "ortet.journal.state.records",
    "ErasureReceipt": "ortet.hub.governance.tombstones",
    "Event": "ortet.journal.events",
    "Fact": "ortet.journal.state.records",
    "Handover": "ortet.sessions.environment.handover",
    "Hold": "ortet.hub.governance.legal_holds",
    "Hub": "ortet.hub.hub",
    "Intent": "ortet.sessions.actions.effects",
    "Job": "ortet.machines.jobs",
    "JobInfo": "ortet.machines.jobs",
    "Kernel": "ortet.machines.kernels.kernel",
    "KernelVariable": "ortet.machines.kernels.link",
    "Leftover": "ortet.machines.cleanup",
    "Lineage": "ortet.sessions.actions.artifacts",
    "Loss": "ortet.machines.base",
    "MemoryDiff": "ortet.sessions.memory.report",
    "MergeResult": "ortet.workspaces.merge",
    "Message": "ortet.journal.state.records",
    "ModelCall": "ortet.sessions.actions.accounting",
    "ModelContext": "ortet.journal.conversation.context",
    "Orphans": "ortet.sessions.actions.artifacts",
    "ProcessInfo": "ortet.machines.jobs",
    "Question": "ortet.journal.state.records",
    "RateLimitWindow": "ortet.journal.state.records",
    "RecallHit": "ortet.sessions.results",
    "RecallResult": "ortet.sessions.results",
    "Report": "ortet.machines.base",
    "RestoreResult": "ortet.workspaces.results",
    "Result": "ortet.machines.base",
    "RetainReport": "ortet.hub.governance.retention",
    "RetentionPolicy": "ortet.hub.governance.retention",
    "RunDiff": "ortet.journal.replay.run_diff",
    "Secret": "ortet.vault.vault",
    "ServiceToken": "ortet.journal.state.records",
    "Session": "ortet.sessions.session",
    "SessionPlan": "ortet.sessions.conversation",
    "SessionKernel": "ortet.sessions.machine.kernels",
    "SessionMergeResult": "ortet.sessions.history.merge",
    "SessionReader": "ortet.sessions.reader",
    "SessionRow": "ortet.sessions.table",
    "SharedScope": "ortet.sessions.memory.shared_scopes",
    "StoredContent": "ortet.sessions.actions.artifacts",
    "StreamChunk": "ortet.machines.jobs",
    "SwarmResult": "ortet.sessions.swarm_api",
    "SweepReport": "ortet.objects.gc.sweep",
    "TransferReport": "ortet.hub.transfer",
    "TreeChange": "ortet.history.diff.tree_diff",
    "UndoResult": "ortet.workspaces.undo",
    "Vault": "ortet.vault.vault",
    "VerifyReport": "ortet.objects.gc.verify",
    "WorkingMemory": "ortet.memory.working",
    "Workspace": "ortet.workspaces.workspace",
    "WorkspaceStatus": "ortet.workspaces.workspace",
    "action": "ortet.sessions.actions.actions",
    "by_arguments": "ortet.sessions.actions.actions",
    "upcast": "ortet.journal.upcasts",
}
"""The module of each name that is imported at first use: `import ortet` loads no database."""


def __dir__() -> list[str]:
    return sorted(__all__)  # also what is loaded at first use: help() and completion show it


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'ortet' has no attribute {name!r}")
