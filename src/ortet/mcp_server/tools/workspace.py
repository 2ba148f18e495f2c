"""Tools for a workspace and its session: status, commit, run, fork."""

from __future__ import annotations

import time as clock
from typing import Annotated

import msgspec
from msgspec import Meta

from ortet.cli.session_args import unsettled_effects
from ortet.cli.terminal import output
from ortet.ids import from_hex
from ortet.mcp_server.context import McpContext
from ortet.mcp_server.tool import (
    ADDS,
    READS,
    RUNS,
    Change,
    CommitItem,
    LossItem,
    ProgressReport,
    ToolResult,
    changed_files,
    changes_of,
    commit_of,
    cut_middle,
    join_lines,
    limit_lines,
    losses_of,
    tool,
)

_MAX_OUTPUT_CHARACTERS = 16_000
"""Maximum length of each output stream in an answer. The middle is left out."""

_REPORT_INTERVAL_SECONDS = 0.25
"""Interval between two progress reports of a command's output."""

Why = Annotated[str, Meta(description="The reason, in a sentence. The journal records it.")]


class StatusToolResult(ToolResult, frozen=True):
    """`session`: "" until a tool that writes has begun the session. `changed`: the number of all
    changes. `changes`: the first 200 of them. `unsettled`: effects whose outcome is not known.
    `waiting`: approvals that wait for an answer.
    """

    name: str
    session: str
    agent: str
    status: str
    directory: str
    store: str
    branch: str
    head: CommitItem | None
    clean: bool
    changed: int
    changes: list[Change]
    losses: list[LossItem]
    goal: str
    plan: list[str]
    step: int
    unsettled: list[str]
    waiting: list[str]

    def __str__(self) -> str:
        head = str(self.head) if self.head else "no commit yet"
        now = f"plan, step {self.step + 1} of {len(self.plan)}: {output.title(self._current_step)}"
        return join_lines(
            f"session {self.name}, {self.status}, of {self.agent}, in {output.safe(self.directory)}"
            if self.session
            else f"no session yet: the first tool that writes begins {self.name!r} for "
            f"{output.safe(self.directory)}",
            f"head {head}",
            "nothing changed since" if self.clean else f"{self.changed} changed since:",
            *limit_lines(self.changes, self.changed),
            *(f"not kept: {loss}" for loss in self.losses),
            f"goal: {output.title(self.goal)}" if self.goal else "",
            now if self.plan and self._current_step else "",
            f"outcome not known: {', '.join(self.unsettled)} (see effects)"
            if self.unsettled
            else "",
            f"waits for a human: {', '.join(self.waiting)}" if self.waiting else "",
        )

    @property
    def _current_step(self) -> str:
        return self.plan[self.step] if self.step < len(self.plan) else ""


@tool(READS)
def status(context: McpContext) -> StatusToolResult:
    """Show the session and directory of this server, and the changes that a commit would record
    now.
    """
    row = context.current_session()
    with context.open_files() as files:
        state = files.status() if files is not None else None
    view = context.hub.get(row.id) if row is not None else None
    branch = context.head_branch() if view is not None or context.has_hub else ""
    head = view.head if view is not None else None
    if head is None and state is not None and state.head:
        head = context.hub.history.info(from_hex(state.head))
    return StatusToolResult(
        name=context.session_name(),
        session=row.id if row else "",
        agent=row.agent if row else context.agent,
        status=row.status if row else "",
        directory=(row.path if row else "") or str(context.directory),
        store=str(context.hub.root) if context.has_hub else "",
        branch=branch or "",
        head=commit_of(head) if head else None,
        clean=state is None or state.clean,
        changed=len(state.changes) if state else 0,
        changes=changes_of(state.changes) if state else [],
        losses=losses_of(state.losses) if state else [],
        goal=view.goal if view else "",
        plan=view.steps if view else [],
        step=view.step if view else 0,
        unsettled=[one.id for one in unsettled_effects(context.call, view)] if view else [],
        waiting=[one.id for one in view.actions.approvals() if one.state == "asked"]
        if view
        else [],
    )


class CommitToolResult(ToolResult, frozen=True):
    """`created`: false if nothing had changed; `commit` is then the present head."""

    commit: CommitItem
    created: bool
    changed: int
    changes: list[Change]
    losses: list[LossItem]

    def __str__(self) -> str:
        what = f"{self.changed} changed" if self.created else "nothing changed"
        return join_lines(
            f"{'committed' if self.created else 'the head is'} {self.commit} ({what})",
            *limit_lines(self.changes, self.changed),
            *(f"not kept: {loss}" for loss in self.losses),
        )


@tool(ADDS)
def commit(
    context: McpContext,
    *,
    message: Annotated[str, Meta(description="The commit message: what this state is.")] = "",
    allow_secrets: Annotated[
        bool, Meta(description="Commit even if the files contain a known secret.")
    ] = False,
) -> CommitToolResult:
    """Commit the whole agent under one hash: conversation, plan, facts and all files of the
    workspace. Do it after each step that works: restore and rewind return to commits. If nothing
    changed, the head is returned.
    """
    with context.open_session() as session:
        before = session.head
        info = session.commit(message, allow_secrets=allow_secrets)
        created = before is None or before.oid != info.oid
        changes = (
            changed_files(context, before.oid if before else None, info.oid) if created else []
        )
        losses = session.machine.losses if session.internals.row.has_files else []
        return CommitToolResult(
            commit_of(info), created, len(changes), changes_of(changes), losses_of(losses)
        )


class RunToolResult(ToolResult, frozen=True):
    """The result of a command. `exit_code`: 124 after a time-out, 128 + n after signal n. `cut`:
    the middle of a long output was left out.
    """

    exit_code: int
    stdout: str
    stderr: str
    duration: float
    timed_out: bool
    oom: bool
    cut: bool

    def __str__(self) -> str:
        keep = "\n\t"
        late = ", killed at its time-out" if self.timed_out else ""
        return join_lines(
            f"exit code {self.exit_code}{late}{', out of memory' if self.oom else ''} "
            f"({output.format_duration(self.duration)})",
            output.safe(self.stdout, keep=keep).rstrip("\n"),
            f"stderr:\n{output.safe(self.stderr, keep=keep)}".rstrip("\n") if self.stderr else "",
        )


@tool(RUNS)
def run(
    context: McpContext,
    *,
    report: ProgressReport,
    command: Annotated[
        str | list[str],
        Meta(description="A string runs in sh -c; a list is executed directly."),
    ],
    why: Why = "",
    timeout: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="Number of seconds after which the command and its children are killed."),
    ] = None,
    cwd: Annotated[str, Meta(description="A directory of the workspace to start in.")] = "",
    env: Annotated[
        dict[str, str | None], Meta(description="Variables to set; null unsets one.")
    ] = {},  # noqa: B006 - a record copies it
    stdin: Annotated[str | None, Meta(description="The standard input of the command.")] = None,
    secrets: Annotated[
        list[str],
        Meta(description="Names of secrets in the vault. The command gets them as variables."),
    ] = [],  # noqa: B006
) -> RunToolResult:
    """Run a command in the workspace. The journal records the command, its reason and its outcome.
    The output is sent as progress while the command runs. Cancelling the call kills the command.
    """
    progress = _ProgressReporter(report)
    with context.open_session() as session:
        done = session.run(
            command,
            why=why,
            timeout=timeout,
            cwd=cwd,
            env=env,
            stdin=None if stdin is None else stdin.encode(),
            output=progress.on_output,
            secrets=secrets,
        )
    stdout, stderr = (
        cut_middle(done.stdout, _MAX_OUTPUT_CHARACTERS),
        cut_middle(done.stderr, _MAX_OUTPUT_CHARACTERS),
    )
    return RunToolResult(
        done.exit_code,
        stdout,
        stderr,
        done.duration,
        done.timed_out,
        done.oom,
        (stdout, stderr) != (done.stdout, done.stderr),
    )


class _ProgressReporter:
    """Reports the last line of the output, at most once per interval."""

    def __init__(self, report: ProgressReport) -> None:
        self._report = report
        self._next = 0.0

    def on_output(self, _: str, data: bytes) -> None:
        now = clock.monotonic()
        lines = data.decode("utf-8", "replace").strip().rsplit("\n", 1)
        if now >= self._next and lines[-1]:
            self._next = now + _REPORT_INTERVAL_SECONDS
            self._report(output.safe(lines[-1][-200:]))


class Copy(msgspec.Struct, frozen=True):
    """A copy. `path`: the directory of its files, or "" if they can be read only in its machine."""

    name: str
    session: str
    branch: str
    engine: str
    path: str
    head: str


class ForkToolResult(ToolResult, frozen=True):
    forks: list[Copy]

    def __str__(self) -> str:
        lines = [f"{one.name} ({one.engine or 'mind only'}) {one.path}" for one in self.forks]
        return join_lines(*map(str.rstrip, lines), "land or merge brings their files back (CLI)")


@tool(ADDS)
def fork(
    context: McpContext,
    *,
    n: Annotated[int, Meta(description="The number of copies.", ge=1, le=64)] = 1,
    machine: Annotated[bool, Meta(description="False copies the state without the files.")] = True,
) -> ForkToolResult:
    """Make private copies of the whole agent, to try several ways at once. Each copy is a session
    and a branch with its own files. Uncommitted changes are committed first, and the original is
    not changed. `ortet run -w NAME` runs a command in a copy, `ortet land NAME` applies its files
    to the original.
    """
    with context.open_session() as session:
        copies = []
        for kid in session.fork(n, machine=machine):
            files = kid.machine if machine and kid.internals.row.has_files else None
            path = str(files.path) if files is not None and files.engine == "folder" else ""
            head = kid.head
            copies.append(
                Copy(
                    kid.name,
                    kid.id,
                    kid.internals.row.branch,
                    files.engine if files is not None else "",
                    path,
                    head.oid if head else "",
                )
            )
        return ForkToolResult(copies)
