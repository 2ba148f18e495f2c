"""status, commit, run, fork: the everyday tools of a workspace and its session."""

from __future__ import annotations

import time as clock
from typing import Annotated

import msgspec
from msgspec import Meta

from ortet.cli import output
from ortet.cli.session_args import unknown
from ortet.ids import from_hex
from ortet.mcp_server.answers import (
    Change,
    Commit,
    Loss,
    between,
    changes_of,
    commit_of,
    ends_of,
    joined,
    losses_of,
    some,
)
from ortet.mcp_server.context import Desk
from ortet.mcp_server.tool import ADDS, READS, RUNS, Answer, Report, tool

_SHOWN = 16_000
"""Characters of each stream of a command that are given back: both of its ends."""

_EVERY = 0.25
"""Seconds between two reports of a command's output."""

Why = Annotated[str, Meta(description="The reason, in a sentence; kept in the journal.")]


class Status(Answer, frozen=True):
    """`session` is "" until the first tool that writes has begun it; `changed` counts all changes,
    of which `changes` lists the first 200."""

    name: str
    session: str
    agent: str
    status: str
    directory: str
    store: str
    branch: str
    head: Commit | None
    clean: bool
    changed: int
    changes: list[Change]
    losses: list[Loss]
    goal: str
    plan: list[str]
    step: int
    unsettled: list[str]
    waiting: list[str]

    def __str__(self) -> str:
        at = str(self.head) if self.head else "no commit yet"
        now = f"plan, step {self.step + 1} of {len(self.plan)}: {output.title(self._now)}"
        return joined(
            f"session {self.name}, {self.status}, of {self.agent}, in {output.safe(self.directory)}"
            if self.session
            else f"no session yet: the first tool that writes begins {self.name!r} for "
            f"{output.safe(self.directory)}",
            f"head {at}",
            "nothing changed since" if self.clean else f"{self.changed} changed since:",
            *some(self.changes, self.changed),
            *(f"not kept: {loss}" for loss in self.losses),
            f"goal: {output.title(self.goal)}" if self.goal else "",
            now if self.plan and self._now else "",
            f"outcome not known: {', '.join(self.unsettled)} (see effects)"
            if self.unsettled
            else "",
            f"waits for a human: {', '.join(self.waiting)}" if self.waiting else "",
        )

    @property
    def _now(self) -> str:
        return self.plan[self.step] if self.step < len(self.plan) else ""


@tool(READS)
def status(desk: Desk) -> Status:
    """Show which session and directory this server works on, and what a commit would record now."""
    row = desk.begun()
    with desk.files() as files:
        found = files.status() if files is not None else None
    view = desk.hub.get(row.id) if row is not None else None
    branch = desk.head_branch() if view is not None or desk.opened_hub else ""
    head = view.head if view is not None else None
    if head is None and found is not None and found.head:
        head = desk.hub.history.info(from_hex(found.head))
    return Status(
        name=desk.name(),
        session=row.id if row else "",
        agent=row.agent if row else desk.agent,
        status=row.status if row else "",
        directory=(row.path if row else "") or str(desk.directory),
        store=str(desk.hub.root) if desk.opened_hub else "",
        branch=branch or "",
        head=commit_of(head) if head else None,
        clean=found is None or found.clean,
        changed=len(found.changes) if found else 0,
        changes=changes_of(found.changes) if found else [],
        losses=losses_of(found.losses) if found else [],
        goal=view.goal if view else "",
        plan=view.steps if view else [],
        step=view.step if view else 0,
        unsettled=[one.id for one in unknown(desk, view)] if view else [],
        waiting=[one.id for one in view.approvals() if one.state == "asked"] if view else [],
    )


class Committed(Answer, frozen=True):
    """`created` is false when nothing had changed and this is the head as it was."""

    commit: Commit
    created: bool
    changed: int
    changes: list[Change]
    losses: list[Loss]

    def __str__(self) -> str:
        what = f"{self.changed} changed" if self.created else "nothing changed"
        return joined(
            f"{'committed' if self.created else 'the head is'} {self.commit} ({what})",
            *some(self.changes, self.changed),
            *(f"not kept: {loss}" for loss in self.losses),
        )


@tool(ADDS)
def commit(
    desk: Desk,
    *,
    message: Annotated[str, Meta(description="What this state is.")] = "",
    allow_secrets: Annotated[
        bool, Meta(description="Also if it holds a secret that is known.")
    ] = False,
) -> Committed:
    """Record the whole agent under one hash: conversation, plan, facts and all files of the
    workspace. Do it after each step that works: restore and rewind go back to commits. With
    nothing changed it returns the head."""
    with desk.writing() as session:
        before = session.head
        made = session.commit(message, allow_secrets=allow_secrets)
        created = before is None or before.oid != made.oid
        found = between(desk, before.oid if before else None, made.oid) if created else []
        losses = session.machine.losses if session.row.has_files else []
        return Committed(commit_of(made), created, len(found), changes_of(found), losses_of(losses))


class Ran(Answer, frozen=True):
    """How a command ended. 124 with `timed_out` is a time-out, 128 + n a signal. `cut` is true when
    the middle of a long output was left out."""

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
        return joined(
            f"exit code {self.exit_code}{late}{', out of memory' if self.oom else ''} "
            f"({output.seconds(self.duration)})",
            output.safe(self.stdout, keep=keep).rstrip("\n"),
            f"stderr:\n{output.safe(self.stderr, keep=keep)}".rstrip("\n") if self.stderr else "",
        )


@tool(RUNS)
def run(
    desk: Desk,
    *,
    report: Report,
    command: Annotated[
        str | list[str],
        Meta(description="A string goes to sh -c; a list is executed as it is."),
    ],
    why: Why = "",
    timeout: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(description="Seconds after which it and its children are killed."),
    ] = None,
    cwd: Annotated[str, Meta(description="A directory of the workspace to start in.")] = "",
    env: Annotated[
        dict[str, str | None], Meta(description="Variables to set; null unsets one.")
    ] = {},  # noqa: B006 - a record copies it
    stdin: Annotated[str | None, Meta(description="What it reads from standard input.")] = None,
    secrets: Annotated[
        list[str], Meta(description="Names in the vault to give it as variables.")
    ] = [],  # noqa: B006
) -> Ran:
    """Run a command in the workspace, recorded in the journal with its reason and its outcome. Its
    output comes as progress while it runs. Cancelling the call kills it."""
    told = _Told(report)
    with desk.writing() as session:
        done = session.run(
            command,
            why=why,
            timeout=timeout,
            cwd=cwd,
            env=env,
            stdin=None if stdin is None else stdin.encode(),
            output=told.hear,
            secrets=secrets,
        )
    stdout, stderr = ends_of(done.stdout, _SHOWN), ends_of(done.stderr, _SHOWN)
    return Ran(
        done.exit_code,
        stdout,
        stderr,
        done.duration,
        done.timed_out,
        done.oom,
        (stdout, stderr) != (done.stdout, done.stderr),
    )


class _Told:
    """Passes the last line of an output on, now and then."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._next = 0.0

    def hear(self, _: str, data: bytes) -> None:
        now = clock.monotonic()
        lines = data.decode("utf-8", "replace").strip().rsplit("\n", 1)
        if now >= self._next and lines[-1]:
            self._next = now + _EVERY
            self._report(output.safe(lines[-1][-200:]))


class Copy(msgspec.Struct, frozen=True):
    """One of them; `path` is where its files can be read, "" where they are seen from inside."""

    name: str
    session: str
    branch: str
    engine: str
    path: str
    head: str


class Forked(Answer, frozen=True):
    forks: list[Copy]

    def __str__(self) -> str:
        made = [f"{one.name} ({one.engine or 'mind only'}) {one.path}" for one in self.forks]
        return joined(*map(str.rstrip, made), "land or merge brings their files back (CLI)")


@tool(ADDS)
def fork(
    desk: Desk,
    *,
    n: Annotated[int, Meta(description="How many.", ge=1, le=64)] = 1,
    machine: Annotated[bool, Meta(description="False copies the mind without the files.")] = True,
) -> Forked:
    """Make private copies of the whole agent, each a session and a branch of its own with its own
    files: to try several ways at once. What is uncommitted is committed first; the original is
    untouched. `ortet run -w NAME` works in one, `ortet land NAME` brings its files back."""
    with desk.writing() as session:
        made = []
        for kid in session.fork(n, machine=machine):
            files = kid.machine if machine and kid.row.has_files else None
            path = str(files.path) if files is not None and files.engine == "folder" else ""
            head = kid.head
            made.append(
                Copy(
                    kid.name,
                    kid.id,
                    kid.row.branch,
                    files.engine if files is not None else "",
                    path,
                    head.oid if head else "",
                )
            )
        return Forked(made)
