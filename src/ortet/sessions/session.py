"""The open session: the facade of the parts that write.

`Session` is the entry point of this package. Each verb is one call of a part: a facet, which users
see as well, or an internal one (`Navigation`, `EnvironmentTracker`, `Lifecycle`). All of them share
one `SessionContext` and one `VerbPipeline`. The durability policy of the profile says when an event
reaches the disk.

Invariants: only the holder of the lease writes events; the in-memory state changes only by folding
events; files and session state are committed together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Protocol, TypeVar, overload

from msgspec import UNSET, UnsetType

from ortet._util.validation import FLAG, POSITIVE_COUNT, check_text, require
from ortet.history.commits import CommitInfo
from ortet.history.refs import Ref
from ortet.ids import from_hex
from ortet.journal.environment import Environment, EnvironmentDifference
from ortet.journal.events import Event
from ortet.journal.state.records import Artifact, Fact, Message, SourceEventRef
from ortet.machines.base import Command, OutputCallback, Report, Result
from ortet.sessions.actions.accounting import Accounting
from ortet.sessions.actions.artifacts import ArtifactStore
from ortet.sessions.actions.budget import Budget
from ortet.sessions.actions.session_actions import SessionActions
from ortet.sessions.context import SessionContext
from ortet.sessions.conversation import Conversation, SessionPlan
from ortet.sessions.environment.external_state import ExternalState
from ortet.sessions.environment.handover import BRIEFING_TOKENS, Handover, HandoverWriter
from ortet.sessions.environment.tracker import EnvironmentTracker
from ortet.sessions.history.commit import BranchWriter
from ortet.sessions.history.forking import ForkParent
from ortet.sessions.history.load import LoadedSession, is_bookkeeping_event, uncommitted_events
from ortet.sessions.history.navigation import Navigation
from ortet.sessions.history.participants import OpenSessionParticipant
from ortet.sessions.lifecycle import Lifecycle
from ortet.sessions.machine.programs import SessionPrograms
from ortet.sessions.machine.session_files import SessionFiles
from ortet.sessions.memory.session_memory import SessionMemory
from ortet.sessions.profiles import Profile
from ortet.sessions.reader import ReaderInternals, SessionReader
from ortet.sessions.results import RecallHit
from ortet.sessions.table import CLOSED, PAUSED
from ortet.sessions.times import Moment
from ortet.sessions.writing.auto_commit import AutoCommit
from ortet.sessions.writing.event_writer import EventWriter
from ortet.sessions.writing.inbox import Inbox
from ortet.sessions.writing.pipeline import VerbPipeline
from ortet.store.lease import WriterLease
from ortet.workspaces.programs import INITIAL_SCREEN, SHELL
from ortet.workspaces.results import RestoreResult

if TYPE_CHECKING:
    from collections.abc import Collection

    from ortet.backends.base import Lease
    from ortet.history.diff.tree_diff import TreeChange
    from ortet.history.merge.text_merge import Favor
    from ortet.ids import Oid
    from ortet.journal.conversation.compaction import Compaction, Summarise
    from ortet.machines.jobs import Job
    from ortet.objects.placement import Durability
    from ortet.sessions.actions.actions import ByArguments, KeyScope, Replay, Where
    from ortet.sessions.context import SessionServices
    from ortet.sessions.history.merge import MergeInput, SessionMergeResult
    from ortet.sessions.machine.kernels import SessionKernel
    from ortet.sessions.results import ArchiveRecord
    from ortet.sessions.swarm_api import (
        Interrupted,
        Losers,
        ProgressCallback,
        SwarmRequest,
        SwarmResult,
        SwarmStopSignal,
    )
    from ortet.sessions.table import SessionRow
    from ortet.store.context import StoreContext
    from ortet.workspaces.undo import UndoResult, UndoUnit
    from ortet.workspaces.workspace import Workspace

T = TypeVar("T")


Task = Callable[["Session", int], Any] | str | Sequence[str]
"""An importable function called with the fork and the attempt number, or a command."""


class SwarmStarter(Protocol):
    """Runs the swarm of an open session."""

    def run(self, session: Session, wish: SwarmRequest) -> SwarmResult: ...


class SessionOwner(Protocol):
    """The session manager, as far as an open session calls it."""

    store: StoreContext
    services: SessionServices

    @property
    def swarms(self) -> SwarmStarter: ...

    @property
    def open_sessions(self) -> Sequence[Session]: ...

    def release(self, session: Session) -> None: ...

    def find_open(self, id_: str) -> Session | None: ...

    def leased_session(self, row: SessionRow) -> AbstractContextManager[Session]: ...

    def resume(
        self,
        row: SessionRow,
        lease: Lease | None,
        profile: Profile,
        *,
        loaded: LoadedSession | None = None,
        head: Oid | None = None,
    ) -> Session: ...

    def owner(self) -> str: ...

    def free_branch(self, name: str) -> str: ...


class SessionInternals(ReaderInternals, frozen=True):
    """What other packages of ortet use of an open session.

    Programs of users must not use it: it changes without notice.

    Attributes:
        profile: The policies of the session.
        manager: The session manager that opened the session.
        pipeline: The writing side: writer, lease, effects, budget and commit policy.
        navigation: Commits, restores and moves to other commits.
        lifecycle: Status changes, and the release of the lease.
        files: The workspace of the session, opened at first use.
        environment: The recorded environment of the workspace.
    """

    profile: Profile
    manager: SessionOwner
    pipeline: VerbPipeline
    navigation: Navigation
    lifecycle: Lifecycle
    files: SessionFiles
    environment: EnvironmentTracker

    @property
    def held_lease(self) -> WriterLease:
        """Return the lease with which the session writes."""
        return self.pipeline.held_lease

    @property
    def is_open(self) -> bool:
        """True until the lease is released."""
        return not self.pipeline.held_lease.is_released

    def fork_parent(self) -> ForkParent:
        """Return the session as the parent of forks."""
        return ForkParent(self.context, self.profile, self.held_lease, self.files)

    def has_workspace(self) -> bool:
        """Return True if the session has files. Opens them."""
        return self.files.workspace() is not None

    def attach_files(self, files: Workspace) -> None:
        """Use `files` as the workspace of the session. They are committed and restored with it."""
        self.files.attach(files)

    def drain_inbox(self) -> None:
        """Append the entries that other processes left in the inbox to the journal."""
        self.pipeline.drain_inbox()

    def publish(self) -> None:
        """Publish committed facts to the shared memory scopes."""
        self.navigation.publish()

    def close_dangling_effects(self) -> None:
        """Record an outcome for each action that has an intent but no outcome."""
        self.pipeline.effects.close_dangling()

    def start_replay(self, *, live: bool, report: Path | None = None) -> None:
        """Replay the events from the first one on; see `SessionReplay`."""
        from ortet.sessions.history.replay import SessionReplay

        SessionReplay(self.navigation, self.lifecycle, live=live, report=report)


class Session(SessionReader):
    """A session that is open for writing and holds its lease.

    Leaving the `with` block pauses the session.
    """

    def __init__(
        self,
        manager: SessionOwner,
        context: SessionContext,
        *,
        writer: EventWriter,
        branch: BranchWriter,
        held_lease: WriterLease,
        loaded: LoadedSession,
        profile: Profile,
        host: str,
    ) -> None:
        super().__init__(context)
        self._manager = manager
        self._profile = profile
        store, row = context.store, context.row
        self._pipeline = VerbPipeline(
            context,
            writer,
            held_lease,
            budget=Budget(store, row, writer, host=host),
            inbox=Inbox(store.catalog, row.id, writer),
            auto_commit=AutoCommit(profile.commit, context.now()),
        )
        self._count_uncommitted_events()
        self._environment = EnvironmentTracker(context, self._pipeline, profile.environment)
        participant = OpenSessionParticipant(
            context,
            writer,
            lease=lambda: held_lease.lease,
            on_moved=self._on_moved,
            variables=self._environment.command_variables,
        )
        directory = profile.handover if profile.briefing else ""
        self._files = SessionFiles(
            context,
            self._pipeline,
            participant,
            generated_directory=directory,
            on_attach=self._environment.take_baseline,
        )
        self._environment.connect(self._files)
        self._handover = self._make_handover_writer(directory)
        self._navigation = Navigation(
            context,
            self._pipeline,
            branch,
            participant,
            self._files,
            environment=self._environment,
            handover=self._handover,
            head_image=loaded.machine,
        )
        self._lifecycle = self._make_lifecycle(loaded.epoch)
        self._pipeline.commit = self._navigation.commit
        self._pipeline.end = self._lifecycle.end
        writer.reload = self._reload
        context.hooks += [self._environment, self._handover]

    def _make_handover_writer(self, directory: str) -> HandoverWriter:
        return HandoverWriter(
            self._context,
            self._pipeline,
            self._files.root,
            lambda: self.memory.briefing(BRIEFING_TOKENS).markdown,
            directory=directory,
        )

    def _make_lifecycle(self, epoch: int) -> Lifecycle:
        return Lifecycle(
            self._context,
            self._pipeline,
            self._navigation,
            self._files,
            self._environment,
            epoch=epoch,
            forget=lambda: self._manager.release(self),
        )

    def _count_uncommitted_events(self) -> None:
        """Count the events that an earlier process left uncommitted."""
        writer, policy = self._pipeline.writer, self._profile.commit
        if writer.tip.seq <= writer.event_log.base.seq:
            return
        news = (e for e in uncommitted_events(writer.event_log) if not is_bookkeeping_event(e))
        first = next(news, None)
        self._context.dirty = first is not None
        # a manual policy never reads these events
        if first is not None and policy.when != "manual":
            self._pipeline.auto_commit.count_events([first, *news])

    def _on_moved(self) -> None:
        self._navigation.on_moved()

    def _reload(self) -> None:
        """Load the session from the store, after a verb was interrupted."""
        context, writer, former = self._context, self._pipeline.writer, self._context.row
        row = context.services.table.get(former.id)
        loaded = context.services.load(row)
        context.set_row(row)
        writer.restart(loaded.line, loaded.mind, loaded.tip)
        context.switch(row, writer.event_log, writer.state)
        self._navigation.reload(loaded.machine)
        if row.timeline != former.timeline:
            self._on_moved()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        events = self._pipeline.writer.tip.seq
        return f"<Session {self.name!r} of {self.agent}, {self.status}, {events} events>"

    @cached_property
    def internals(self) -> SessionInternals:
        """Return the parts that other packages of ortet use. They are not public."""
        return SessionInternals(
            self._context,
            self._profile,
            self._manager,
            self._pipeline,
            self._navigation,
            self._lifecycle,
            self._files,
            self._environment,
        )

    # facets

    @cached_property
    def conversation(self) -> Conversation:
        """Messages, plan, questions, decisions, notes and custom records."""
        return Conversation(self._context, self._pipeline, note_ttl=self._profile.note_ttl)

    @cached_property
    def memory(self) -> SessionMemory:
        """Facts, lessons, episodes, recall, context and briefing."""
        return SessionMemory(self._context, self._pipeline)

    @cached_property
    def actions(self) -> SessionActions:
        """Actions, effects and approvals."""
        return SessionActions(self._context, self._pipeline)

    @cached_property
    def accounting(self) -> Accounting:
        """Spends, limits and model calls."""
        return Accounting(self._context, self._pipeline)

    @cached_property
    def artifact_store(self) -> ArtifactStore:
        """Versions of artifacts, their content and lineage."""
        return ArtifactStore(self._context, self._pipeline, workspace=self._files.workspace)

    @cached_property
    def external(self) -> ExternalState:
        """Collaborations, rate limits, tokens and browser state."""
        return ExternalState(self._context, self._pipeline)

    @cached_property
    def programs(self) -> SessionPrograms:
        """Commands, services, shells, processes, ports and kernels."""
        programs = SessionPrograms(self._pipeline, self._files, self.artifact_store)
        # before the other hooks: the commit must have the variables of kernels
        self._context.hooks.insert(0, programs)
        return programs

    # conversation and plan

    def say(self, role: str, content: Any, **extra: Any) -> Event:
        """Add a message.

        Args:
            role: who speaks, as "user" or "assistant".
            content: text, or the content parts of a model API.
            **extra: further fields of the message, such as tool_calls.
        """
        return self.conversation.say(role, content, **extra)

    def say_all(
        self, messages: Iterable[tuple[str, Any] | Mapping[str, Any]], *, key: str = ""
    ) -> list[Event]:
        """Add several messages in one write: all or none.

        Args:
            messages: pairs (role, content), or dicts as a model API has them.
            key: an idempotency key. The same call again, also by another process, returns the
                events of the first call.

        Raises:
            Invalid: "key_reused" if other messages were recorded under the key.
        """
        return self.conversation.say_all(messages, key=key)

    def think(self, text: str) -> Event:
        """Record a thought of the agent. A thought is not a message of the conversation.

        Args:
            text: the thought.
        """
        return self.conversation.think(text)

    def note(self, key: str, value: Any, *, ttl: float | None = None) -> Event:
        """Keep a value under a key for a while.

        Args:
            key: the key. A later note replaces an earlier one.
            value: plain data; None ends the note.
            ttl: the lifetime in seconds; by default that of the profile.
        """
        return self.conversation.note(key, value, ttl=ttl)

    @overload
    def plan(self) -> SessionPlan: ...

    @overload
    def plan(self, steps: Sequence[str]) -> Event: ...

    def plan(self, steps: Sequence[str] | UnsetType = UNSET) -> Event | SessionPlan:
        """Set the plan, or return it.

        Setting a plan makes its first step the current one.

        Args:
            steps: the steps in order. Without this argument, the present plan is returned.

        Returns:
            The event, or without arguments the plan with its `steps` and the current `step`.
        """
        if isinstance(steps, UnsetType):
            return self.conversation.plan()
        return self.conversation.plan(steps)

    def advance(self, to: int | None = None) -> Event:
        """Move to the next step of the plan, or to step `to`, counted from 0.

        Raises:
            Invalid: "bad_step" if the plan has no such step.
        """
        return self.conversation.advance(to)

    def ask(self, text: str) -> str:
        """Ask a question that stays open until it is answered.

        Args:
            text: the question.

        Returns:
            The id of the question.
        """
        return self.conversation.ask(text)

    def answer(self, question: str, answer: Any) -> Event:
        """Answer a question.

        Args:
            question: the id of the question.
            answer: the answer, as plain data.

        Raises:
            NotFound: "no_question" if it was not asked.
        """
        return self.conversation.answer(question, answer)

    def decide(self, text: str, *, why: str = "", instead_of: Sequence[str] = ()) -> str:
        """Record a decision with its rejected alternatives, and return its id.

        Args:
            text: the decision.
            why: the reason.
            instead_of: the alternatives.
        """
        return self.conversation.decide(text, why=why, instead_of=instead_of)

    def record(self, kind: str, data: Mapping[str, Any], *, version: int = 1) -> Event:
        """Record an event of a kind that your program defines.

        `s.records(kind)` reads these events.

        Args:
            kind: the kind, such as "myapp.ticket".
            data: plain data.
            version: the version of the schema of `data`; see `ortet.upcast`.
        """
        return self.conversation.record(kind, data, version=version)

    def compact(self, keep_last: int = 20, summarise: Summarise | None = None) -> Compaction | None:
        """Leave all but the newest messages out of context, with a summary in their place.

        Nothing is deleted: `conversation.dropped()` returns these messages.

        Args:
            keep_last: the number of messages to keep.
            summarise: makes the summary; by default an extract.

        Returns:
            The compaction, or None if there is nothing to leave out.

        Raises:
            Conflict: "compacted" if the conversation was compacted concurrently.
        """
        return self.conversation.compact(keep_last, summarise)

    # memory

    def learn(
        self,
        text: str,
        *,
        about: str = "",
        scope: str | None = None,
        confidence: float = 1.0,
        since: Moment | None = None,
        until: Moment | None = None,
        source: Event | Message | SourceEventRef | int | None = None,
        supersedes: str | Fact | RecallHit | None = None,
    ) -> str:
        """Record a fact and return its id.

        Args:
            text: the fact.
            about: its subject.
            scope: who shares it: "session", "agent", "user:NAME" or "project:NAME". Shared facts
                are published by a commit, those of a fork when it is adopted.
            confidence: 0 to 1.
            since: when it starts to hold.
            until: when it stops to hold.
            source: the event that it comes from.
            supersedes: the fact that it replaces: an id, a Fact or a hit.
        """
        return self.memory.learn(
            text,
            about=about,
            scope=scope,
            confidence=confidence,
            since=since,
            until=until,
            source=source,
            supersedes=supersedes,
        )

    def lesson(self, text: str, *, about: str = "", scope: str | None = None) -> str:
        """Record what a failure taught, and return the id.

        Args:
            text: the lesson.
            about: its subject.
            scope: who shares it; see `learn`.
        """
        return self.memory.lesson(text, about=about, scope=scope)

    def forget(self, fact: str | Fact | RecallHit, *, why: str = "") -> Event:
        """Retract a fact. The fact and the reason stay recorded.

        A shared fact is retracted for others when the session commits.

        Args:
            fact: its id, a Fact or a hit.
            why: the reason.

        Raises:
            NotFound: "no_fact" if it is not known or already retracted.
        """
        return self.memory.forget(fact, why=why)

    def milestone(
        self,
        summary: str = "",
        *,
        outcome: str = "",
        importance: float | None = None,
        summarise: Summarise | None = None,
    ) -> str:
        """Record the events since the last episode as an episode.

        Args:
            summary: what happened; by default made from messages, decisions and facts.
            outcome: how it ended.
            importance: 0 to 1.
            summarise: makes the summary.

        Returns:
            The id of the episode, or "" if nothing happened.
        """
        return self.memory.milestone(
            summary, outcome=outcome, importance=importance, summarise=summarise
        )

    # actions and accounting

    def act(
        self,
        function: Callable[..., T],
        *args: Any,
        why: str = "",
        replay: Replay | None = None,
        key: str | ByArguments | None = None,
        scope: KeyScope | None = None,
        name: str | None = None,
        approve: str | None = None,
        where: Where | None = None,
        safe_errors: tuple[type[BaseException], ...] = (),
        **kwargs: Any,
    ) -> T:
        """Call a function and record it as an action.

        The intent is durable before the call, and the outcome is recorded after it.

        Args:
            function: the function to call with `args` and `kwargs`.
            why: the reason, recorded with the action.
            replay: how the action may be repeated: "pure", "recorded", "idempotent" or "once".
            key: an idempotency key. An action with a key runs once in its scope. "once" and
                "idempotent" need one. `ortet.by_arguments` makes it of the name and the arguments.
            scope: "family" for the session and all its forks, or "timeline".
            name: the recorded name; by default that of the function.
            approve: the reason to show to a human. The call then needs `hub.approve` first.
            where: "outside" (the default), or "workspace" for an action that only changes files of
                the workspace. A restore undoes those and frees their keys.
            safe_errors: classes of exceptions that say, like `ortet.NotDone`, that nothing
                happened. Any other exception leaves a "once" action unsettled.

        Returns:
            The result of the function, or the recorded result if the key was used before.

        Raises:
            Refused: "approval_pending" while nobody has answered, in this process or the next one;
                "approval_denied"; "budget_spent".
            Unsettled: an earlier call with this key, or with the same name and arguments, has no
                known outcome. `s.actions.settle` records what happened.
            Conflict: another session is running the action with this key, or the key was used with
                other arguments.
            Invalid: "no_key" if the action needs a key and has none.
        """
        result: T = self.actions.act(
            function,
            *args,
            why=why,
            replay=replay,
            key=key,
            scope=scope,
            name=name,
            approve=approve,
            where=where,
            safe_errors=safe_errors,
            **kwargs,
        )
        return result

    def spend(self, *, model: str = "", **amounts: float) -> Event:
        """Record that some of the budget was used.

        The spend is recorded even if it exceeds a limit. The session is then paused.

        Args:
            model: the model that was paid.
            **amounts: the amount of each counter, such as tokens or usd.

        Raises:
            Refused: "budget_spent" if a limit is exceeded. It says what is left and how to raise
                the limit.
        """
        return self.accounting.spend(model=model, **amounts)

    def budget(self, *, soft: Mapping[str, float | None] | None = None, **limits: Any) -> Event:
        """Set limits for this session and its forks. Limits that are not given stay.

        Args:
            soft: limits that record a warning once when they are reached.
            **limits: hard limits by counter; None removes one. The session pauses when one is
                exceeded.
        """
        return self.accounting.budget(soft=soft, **limits)

    def artifact(
        self,
        name: str | os.PathLike[str],
        *,
        kind: str = "",
        data: bytes | str | BinaryIO | None = None,
        media: str = "",
        link: str = "",
        why: str = "",
        allow_secrets: bool = False,
    ) -> Artifact:
        """Store an artifact. The same name again makes the next version.

        The artifact records the action in which it was made.

        Args:
            name: the name, or the path of the file in the workspace if there is no `data` and no
                `link`.
            kind: what it is, for example "report".
            data: the content, or an open file that is read from its first byte.
            media: the media type; by default guessed from the name.
            link: where the content is, if it is not stored.
            why: the reason.
            allow_secrets: store it even if it holds a known secret.

        Raises:
            Refused: "secret_found" if it holds a known secret.
        """
        return self.artifact_store.artifact(
            name, kind=kind, data=data, media=media, link=link, why=why, allow_secrets=allow_secrets
        )

    # machine

    @property
    def machine(self) -> Workspace:
        """Return the workspace with the files and processes of this session.

        The machine starts at first use. A session without a directory then gets an empty private
        workspace.
        """
        return self._files.machine

    @property
    def path(self) -> Path:
        """Return the directory where the host can read the files of the session."""
        return self._files.machine.path

    def run(
        self,
        command: Command,
        *,
        env: Mapping[str, str | None] | None = None,
        cwd: str = "",
        timeout: float | None = None,
        stdin: bytes | str | None = None,
        output: OutputCallback | None = None,
        secrets: Mapping[str, str] | Sequence[str] | None = None,
        why: str = "",
        replay: Replay | None = None,
        key: str | ByArguments | None = None,
        scope: KeyScope | None = None,
        where: Where | None = None,
    ) -> Result:
        """Run a command in the machine and record it as an action.

        Output and exit code are the outcome of the action. A str goes to `sh -c`; a list is
        executed.

        Args:
            command: the command to run.
            why: the reason, recorded with the action.
            replay: how the command may be repeated: "pure", "recorded", "idempotent" or "once".
            key: an idempotency key. A command with a key runs once in its scope.
            scope: "family" for the session and all its forks, or "timeline".
            where: "workspace", where a restore undoes the effect and frees the key, or "outside".
                The default is "outside" with scope="family" or replay="once", else "workspace".
            env: variables to set; None unsets one.
            cwd: the working directory below the workspace.
            timeout: the limit in seconds.
            stdin: the standard input.
            output: called with output as it arrives.
            secrets: names in the vault, or variable -> name. The command gets their values as
                variables. Nothing can be committed until it has ended.

        Returns:
            The result, with `exit_code`, `stdout` and `stderr`.

        Raises:
            Refused: "budget_spent" if the budget is used up.
        """
        return self.programs.run(
            command,
            env=env,
            cwd=cwd,
            timeout=timeout,
            stdin=stdin,
            output=output,
            secrets=secrets,
            why=why,
            replay=replay,
            key=key,
            scope=scope,
            where=where,
        )

    def spawn(
        self,
        name: str,
        command: Command,
        *,
        env: Mapping[str, str | None] | None = None,
        cwd: str = "",
        stdin: bool = False,
        why: str = "",
    ) -> Job:
        """Start a service in the machine under a name.

        Args:
            name: the name of the service.
            command: a str for `sh -c`, or a list to execute.
            why: the reason, recorded with the action.
            env: variables to set; None unsets one.
            cwd: the working directory below the workspace.
            stdin: keep the standard input open for writing.
        """
        return self.programs.spawn(name, command, env=env, cwd=cwd, stdin=stdin, why=why)

    def shell(
        self,
        name: str = "main",
        *,
        command: Command = SHELL,
        size: tuple[int, int] = INITIAL_SCREEN,
        env: Mapping[str, str | None] | None = None,
        why: str = "",
    ) -> Job:
        """Return the shell of this name, started at first use.

        Args:
            name: the name of the shell.
            why: the reason, recorded with the action.
            command: the program to start.
            size: rows and columns of its terminal.
            env: variables to set; None unsets one.
        """
        return self.programs.shell(name, command=command, size=size, env=env, why=why)

    def kernel(
        self,
        name: str = "main",
        *,
        python: str | None = None,
        env: Mapping[str, str | None] | None = None,
        keep: Sequence[str] | None = None,
    ) -> SessionKernel:
        """Return a Python interpreter in the machine. Its runs are recorded as actions.

        The interpreter starts at its first run. If the engine carries processes, a commit holds all
        of it.

        Args:
            name: the name of the kernel.
            python: the interpreter; by default that of the workspace's .venv, else this process's.
            env: variables to set; None unsets one.
            keep: names of variables to save with each commit. After a restore, or in a fork, a new
                interpreter starts with them.
        """
        return self.programs.kernel(name, python=python, env=env, keep=keep)

    def land(self, *, favor: Favor | None = None) -> Report:
        """Apply the file changes of this session to its original directory, all or nothing.

        Args:
            favor: "ours" or "theirs" settles every conflict for that side.
        """
        return self._files.machine.land(favor=favor)

    def diff(self, ref: str = "HEAD", other: str | None = None) -> list[TreeChange]:
        """Return the file changes from `ref` to `other`.

        Args:
            ref: the older side; the head by default.
            other: the newer side. None means the present files, committed or not.
        """
        return self._files.machine.diff(ref, other)

    # environment

    @overload
    def environment(self) -> Environment: ...

    @overload
    def environment(self, *, compare: Literal[True] | str) -> list[EnvironmentDifference]: ...

    def environment(
        self, *, compare: bool | str = False
    ) -> Environment | list[EnvironmentDifference]:
        """Probe the environment of the workspace and record what changed.

        The environment is what a restore of files does not bring back: packages, variables, hosts,
        resolver, git state. Recorded variables are set for commands, unless this process has
        changed them since the session was opened or restored.

        Args:
            compare: True compares with the head commit, a ref with that commit. Nothing is
                recorded.

        Returns:
            The environment, or with `compare` the differences.
        """
        if compare is False:
            return self._environment.environment()
        return self._environment.environment(compare=compare)

    def handover(self, directory: str | os.PathLike[str]) -> Handover:
        """Write feature_list.json, progress.md and BRIEFING.md for the next worker.

        Files with equal content are left alone.

        Args:
            directory: where to write, relative to the workspace if there is one.

        Raises:
            Conflict: a file was not written by a handover. Nothing is written.
        """
        self._pipeline.check_open()
        return self._handover.write(directory)

    # commits and moves

    def commit(
        self, message: str = "", *, allow_secrets: bool = False, durable: Durability | None = None
    ) -> CommitInfo:
        """Commit session state and files together.

        Args:
            message: the commit message.
            allow_secrets: commit even if the commit would hold a known secret.
            durable: where the commit is stored on return, in a store that several hosts share.
                "remote" is the bucket. "local" is the disk of this host, with a later upload; until
                then other hosts cannot read the commit, and it is lost with the disk. None takes
                the setting of the store.

        Returns:
            The new commit, or the head if there is nothing new.

        Raises:
            Refused: "secret_found" if the commit would hold a known secret.
        """
        return self._navigation.commit(message, allow_secrets=allow_secrets, durable=durable)

    def restore(
        self, ref: Ref, *, only: Collection[str] | None = None, restart: bool = False
    ) -> RestoreResult:
        """Restore a commit: session state, files and processes.

        Uncommitted work is committed first. Effects stay done and budget stays spent. Processes are
        restored with their files; if only files are restored, the running processes continue.

        Args:
            ref: the commit to restore: its id, a branch or tag, or a commit record.
            only: restore only these of "mind", "files" and "processes".
            restart: start services that ran at `ref` and do not run now.

        Returns:
            A report, with the effects since that commit and differences of the environment.
        """
        return self._navigation.restore(ref, only=only, restart=restart)

    def rewind(self, n: int = 1) -> RestoreResult:
        """Restore the n-th ancestor of the head on this branch, state and files together.

        Raises:
            NotFound: "no_commit" if the session has no commit yet.
        """
        return self._navigation.rewind(n)

    def undo(self, n: int = 1, *, by: UndoUnit = "move", dry_run: bool = False) -> UndoResult:
        """Undo the last n operations that moved the branch, state and files together.

        An operation that changed neither files nor conversation is not counted. Uncommitted files
        count as the first operation. Without files, uncommitted events do. Effects stay done; the
        report lists them. `redo` reverts an undo.

        Args:
            n: the number of operations, or of turns.
            by: "turn" restores the state before the n-th last message of the user, with the files
                of the last commit before it.
            dry_run: return what would happen, without changing anything.

        Raises:
            NotFound: "nothing_to_undo" if there are fewer operations or turns.
        """
        return self._navigation.undo(n, by=by, dry_run=dry_run)

    def redo(self, n: int = 1, *, dry_run: bool = False) -> UndoResult:
        """Redo the last n undone operations, unless another operation followed the undo.

        Args:
            n: the number of operations.
            dry_run: return what would happen, without changing anything.
        """
        return self._navigation.redo(n, dry_run=dry_run)

    def fork(self, n: int = 1, *, machine: bool = True) -> list[Session]:
        """Create n sessions that continue from the present state.

        The present state is committed first. Either all n forks are created or none.

        Args:
            n: the number of forks.
            machine: False forks only the session state, without files.
        """
        pipeline = self._pipeline
        pipeline.ensure_live("fork")
        require(FLAG, machine=machine)
        require(POSITIVE_COUNT, n=n)
        pipeline.check_open()
        pipeline.drain_inbox()
        known = list(self._manager.open_sessions)
        with pipeline.writer.moves:
            try:
                return self._fork(n, machine=machine)
            except BaseException:  # the caller has no handle of a fork: give its lease back
                pipeline.writer.mark_torn()
                for fork in [one for one in self._manager.open_sessions if one not in known]:
                    fork.internals.lifecycle.abandon()
                raise

    def _fork(self, n: int, *, machine: bool) -> list[Session]:
        from ortet.sessions.history.forking import fork_files, fork_state_only

        pipeline, files, navigation = self._pipeline, self._files.workspace(), self._navigation
        point = navigation.branch.head if files is None else None
        fork = fork_files if machine and files is not None else fork_state_only
        with files.announce_forks(n) if fork is fork_files and files is not None else nullcontext():
            if point is None or not navigation.is_unchanged(point):
                point = from_hex(self.commit("fork point").oid)
            pipeline.budget.return_unspent()  # so that the forks can use what was reserved
            forks = fork(self._manager, self.internals.fork_parent(), point, n)
        for one in forks:
            one.internals.environment.inherit_variables(self._environment)
        return forks

    def swarm(
        self,
        task: Task | None = None,
        n: int = 8,
        *,
        score: Task | None = None,
        keep: int | str = 1,
        parallel: int = 2,
        budget: Mapping[str, float] | None = None,
        stop_when: Callable[[SwarmResult], bool] | float | None = None,
        timeout: float | None = None,
        harvest: bool = False,
        losers: Losers = "drop",
        name: str | None = None,
        at: Ref | None = None,
        interrupted: Interrupted = "again",
        on: str | None = None,
        needs: Mapping[str, float] | None = None,
        progress: ProgressCallback | None = None,
        halt: SwarmStopSignal | None = None,
    ) -> SwarmResult:
        """Run n attempts at a task, score them and adopt the best.

        Each attempt runs in a process and a fork of its own. An attempt that fails, dies or exceeds
        `timeout` does not affect the others. A swarm whose process was killed continues when it is
        called again with the same `name`.

        Args:
            task: an importable function `task(session, i)`, or a command for the machine.
            n: the number of attempts.
            score: a function or a command; a higher score is better. The score of a command is the
                last number that it prints, else 0 for exit code 0 and less for other codes. None
                takes what the task returned or printed.
            keep: 1 adopts the best attempt. k > 1 leaves the k best as sessions. 0 keeps none.
                "merge" merges all attempts, "merge:K" the K best.
            parallel: the number of attempts at the same time.
            budget: the share of the family's budget for each attempt.
            stop_when: a score, or a function called after each attempt; if reached, the swarm ends.
            timeout: the limit for one attempt, in seconds.
            harvest: learn the facts that the losers learned.
            losers: "drop" removes attempts that are not kept, "keep" leaves them as sessions.
            name: the name of the swarm, for continuing it.
            at: the commit to start from; the present state by default.
            interrupted: "again" repeats the attempts of a killed process, "count" counts them as
                failed.
            on: "ray" or "ray://HOST:PORT" runs the attempts on Ray nodes.
            needs: the resources of one attempt on Ray, for example {"cpu": 2}.
            progress: called with the swarm as attempts proceed.
            halt: lets another thread end the swarm.

        Returns:
            The swarm with all attempts and their scores.
        """
        from ortet.sessions.swarm_api import SwarmRequest

        wish = SwarmRequest(
            task=task,
            n=n,
            score=score,
            keep=keep,
            parallel=parallel,
            budget=budget,
            stop_when=stop_when,
            timeout=timeout,
            harvest=harvest,
            losers=losers,
            name=name,
            at=at,
            interrupted=interrupted,
            on=on,
            needs=needs,
            progress=progress,
            halt=halt,
        )
        self._pipeline.check_open()
        self._pipeline.ensure_live("swarm")
        return self._manager.swarms.run(self, wish)

    def merge(
        self, other: MergeInput, *, message: str = "", favor: Favor | None = None
    ) -> SessionMergeResult:
        """Merge another session, branch or commit into this session, as one commit.

        Conversation, plan and processes stay ours. Facts, lessons, decisions and artifacts are
        united, and files are merged. The report lists contradictions.

        Args:
            other: an open session, or a branch, tag or commit.
            message: the commit message; empty for a default.
            favor: "ours" or "theirs" settles file conflicts for that side.

        Raises:
            Conflict: "merge_conflict" if files conflict. Nothing has changed.
        """
        from ortet.sessions.history.merge import merge

        check_text(message=message)
        self._pipeline.check_open()
        self._pipeline.drain_inbox()
        self._pipeline.ensure_live("merge")
        with self._navigation.following_shared_memory():
            return merge(self._navigation, self._manager, other, message=message, favor=favor)

    def adopt(self, other: MergeInput) -> RestoreResult:
        """Replace state and files by those of another session, branch or commit.

        The present state is committed first and stays in the reflog. Effects stay done. If `other`
        has no files, only its state is adopted.
        """
        from ortet.sessions.history.merge import adopt

        return adopt(self._navigation, self._manager, other)

    def whatif(self, at: int, *, machine: bool = True, **change: Any) -> Session:
        """Create a session in which event `at` had another content.

        Args:
            at: the sequence number of the event to change.
            machine: fork the files too.
            **change: one of `message`, `result` or `error`: the new content.

        Returns:
            The new session. This session does not change.
        """
        from ortet.sessions.history.forking import whatif

        parent = self.internals.fork_parent()
        if self._context.is_replaying:
            parent = ForkParent(self._context.services.read(self.id), self._profile)
        else:
            self._pipeline.check_open()
            self._context.flush()
        return whatif(self._manager, parent, at, machine=machine, **change)

    # life cycle

    def pause(self, why: str = "") -> None:
        """Pause the session and release its lease, so that any process can open it.

        Args:
            why: the reason.
        """
        self._lifecycle.end(PAUSED, why)

    def close(self) -> None:
        """Close this handle, as leaving the `with` block does. A second call does nothing.

        The session is paused, so that any process can open it again. `finish` ends it.
        """
        self._lifecycle.end(PAUSED, "")

    def finish(self, why: str = "") -> None:
        """End the session: its status becomes "closed". Its name stays taken.

        It can still be read and archived. `hub.session(name, reopen=True)` opens it again.

        Args:
            why: the reason.

        Raises:
            Corrupt: the profile says `audit` and the event chain is damaged. The status does not
                change.
        """
        if self._profile.audit and not self._pipeline.held_lease.is_released:
            self._context.flush()
            self._context.services.hub.audit(self.id)
        self._lifecycle.end(CLOSED, why)

    def drop(self) -> None:
        """Pause the session and remove it with its events; see `hub.remove`.

        Its commits stay until their reflog entries expire.

        Raises:
            Refused: "on_hold" if the session is on hold. It is paused then.
        """
        self.pause()
        self._context.services.hub.remove(self.id)

    def archive(self, why: str = "") -> ArchiveRecord:
        """Pause the session and move it into one bundle. `hub.unarchive` restores it.

        Args:
            why: the reason.
        """
        self.pause(why)
        return self._context.services.hub.archive(self.id, why)
