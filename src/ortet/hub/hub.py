"""The `Hub` class: an open store and its public verbs.

`Hub` is the composition root. It connects the store with its workspaces and sessions, and hands
store-wide verbs to `maintenance`, `transfer` and `governance`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ortet._util.validation import CALLABLE, DICT, FLAG, NUMBER, TEXT, check_text, optional, require
from ortet.errors import Invalid, NotFound, Refused, Unavailable
from ortet.history.commits import CommitInfo
from ortet.history.diff.tree_diff import TreeChange, diff_images
from ortet.history.refs import Ref
from ortet.hub.governance.tombstones import replacement_of
from ortet.machines.base import Report
from ortet.store.context import StoreContext
from ortet.store.pin_commit import ref_writer
from ortet.workspaces.commit_participant import CommitParticipant
from ortet.workspaces.machine_homes import HostEngines
from ortet.workspaces.manager import WorkspaceManager
from ortet.workspaces.table import (
    FilesMode,
    RootScope,
    check_outside_store,
    existing_directory,
    real_path,
)
from ortet.workspaces.workspace import Workspace

if TYPE_CHECKING:
    from ortet.history.transfer.bundle import BundleReport
    from ortet.hub.governance.audit import AuditReport
    from ortet.hub.governance.service import Governance
    from ortet.hub.governance.tombstones import ErasureReceipt
    from ortet.hub.inbox_api import InboxApi
    from ortet.hub.maintenance import Maintenance
    from ortet.hub.memory_queries import MemoryQueries
    from ortet.hub.transfer import Transfer, TransferReport
    from ortet.journal.events import Event
    from ortet.journal.replay.run_diff import RunDiff
    from ortet.journal.state.records import Approval, Message
    from ortet.memory.base import IndexFactory
    from ortet.memory.embedders.base import Embedder
    from ortet.objects.gc.sweep import SweepReport
    from ortet.objects.gc.verify import VerifyReport
    from ortet.sessions.actions.bill import Bill, GroupBy, Since
    from ortet.sessions.context import SessionServices
    from ortet.sessions.manager import SessionManager, SwarmRunner
    from ortet.sessions.profiles import ProbePolicy
    from ortet.sessions.reader import SessionReader
    from ortet.sessions.results import ArchiveRecord, RecallResult
    from ortet.sessions.session import Session
    from ortet.sessions.starting import FilesLocation
    from ortet.sessions.table import SessionRow
    from ortet.sessions.times import Moment
    from ortet.sessions.writing.event_writer import Durability
    from ortet.store.context import ReplayRequest
    from ortet.vault.vault import Vault

Progress = Callable[[int, int], None]
"""Called with (done, total) during a long operation."""


class HubOptions(msgspec.Struct, frozen=True):
    """Settings of a hub that its sessions use in addition to the store.

    Attributes:
        swarms: Runs swarms.
        embedder: Embedder for semantic recall, or its name.
        index_factory: Memory index, if hosts share one.
        replay_request: Request to replay a session when this program opens it.
    """

    swarms: SwarmRunner
    embedder: Embedder | str | None = None
    index_factory: IndexFactory | None = None
    replay_request: ReplayRequest | None = None


class HubInternals:
    """What other packages of ortet use of an open hub.

    Programs of users must not use it: it changes without notice.
    """

    def __init__(self, hub: Hub, options: HubOptions) -> None:
        self._hub = hub
        self._options = options

    @cached_property
    def session_manager(self) -> SessionManager:
        """Opens and finds sessions. A command about files alone does not load it."""
        from ortet.sessions.manager import SessionManager

        hub, options = self._hub, self._options
        return SessionManager(
            hub.store,
            hub.workspaces,
            swarms=options.swarms,
            hub=hub,
            embedder=options.embedder,
            index_factory=options.index_factory,
            replay_request=options.replay_request,
        )

    @property
    def services(self) -> SessionServices:
        """Return the services that all sessions of the store share."""
        return self.session_manager.services

    @property
    def has_session_manager(self) -> bool:
        """True if the session manager was used since the hub was opened."""
        return "session_manager" in self.__dict__

    def open_branch_session(self, branch: str) -> Session | None:
        """Open the session that works on a branch, or return None if it is closed or missing."""
        hub = self._hub
        if hub.store.catalog.row("session-branch", branch) is None:
            return None
        row = self.session_manager.table.find_by_branch(branch)
        if row is None or row.status in ("closed", "archived"):
            return None
        return hub.session(row.name, agent=row.agent)

    def pause_open_sessions(self, keep_open: Session | None = None) -> None:
        """Pause every session that is open in this hub, so that other processes can open them.

        The hub stays open.

        Args:
            keep_open: A session that is not paused.
        """
        if self.has_session_manager:
            self.session_manager.pause_all(keep_open)

    @property
    def has_open_sessions(self) -> bool:
        """True if this hub has at least one session open."""
        return self.has_session_manager and self.session_manager.has_open


class Hub:
    """An open store.

    A hub opens sessions and workspaces, reads history and maintains the store. Use it as a context
    manager, or call `close()`. Do not use it in a forked child process; open the store again there.

    Attributes:
        store: The services of the store.
        workspaces: Opens and finds workspaces.
        close_callbacks: Functions that `close` calls before anything is closed.

    Example:
        with ortet.open() as hub, hub.session("fix-42") as s:
            s.say("user", "the login test fails")
    """

    def __init__(self, store: StoreContext, engines: HostEngines, options: HubOptions) -> None:
        self.store = store
        self.url = store.url
        self.root = store.root
        self.catalog = store.catalog
        self.bucket = store.bucket
        self.signal = store.signal
        self.cache = store.cache
        self.objects = store.objects
        self.trees = store.trees
        self.clock = store.clock
        self.random = store.random
        self.history = store.history
        self.refs = store.refs
        self.close_callbacks: list[Callable[[], None]] = []
        self.workspaces = WorkspaceManager(store, engines)
        self.workspaces.find_participant = self._find_participant
        self._options = options
        store.refs.run_pinned = ref_writer(store)
        store.objects.find_replacement = lambda oid: replacement_of(store.catalog, oid)

    def __repr__(self) -> str:
        # The query part of a URL may contain a password.
        return f"<Hub {self.url.partition('?')[0] if '://' in self.url else self.url}>"

    def __enter__(self) -> Hub:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Pause all sessions, close all workspaces including forks, then close the store.

        Every step runs even if an earlier one fails.
        """
        store = self.store
        with ExitStack() as last:  # runs all callbacks even if one fails
            last.callback(store.catalog.close)
            last.callback(store.bucket.close)
            last.callback(store.signal.close)
            last.callback(store.cache.close)
            last.callback(self._close_objects)
            last.callback(self.workspaces.close)
            if self.internals.has_session_manager:
                last.callback(self.internals.session_manager.close)
            for call in self.close_callbacks:
                last.callback(call)

    def _close_objects(self) -> None:
        # Every commit has flushed its objects. Objects that cannot be written now belong to no
        # commit.
        with suppress(Refused, Unavailable):
            self.store.objects.close()

    @cached_property
    def internals(self) -> HubInternals:
        """Return the parts that other packages of ortet use. They are not public."""
        return HubInternals(self, self._options)

    # sessions

    def _find_participant(self, branch: str) -> CommitParticipant:
        return self.internals.session_manager.detached_participant(branch)

    def session(
        self,
        name: str,
        *,
        agent: str = "default",
        goal: str = "",
        workspace: str | os.PathLike[str] | None = None,
        files: FilesMode | None = None,
        engine: str = "auto",
        budget: Mapping[str, Any] | None = None,
        durability: Durability | None = None,
        commit: str | Mapping[str, float] | None = None,
        profile: str | None = None,
        parent: SessionReader | str | None = None,
        replay: bool | Literal["live"] = False,
        handover: str | None = None,
        environment: ProbePolicy | None = None,
        limits: Mapping[str, Any] | None = None,
        network: str | None = None,
        scopes: Sequence[str] | None = None,
        reopen: bool = False,
        wait: float = 0.0,
    ) -> Session:
        """Open a session at its head, or create it. Nothing is executed again.

        The session is leased to this process until it is paused, closed or finished.

        Args:
            name: Name of the session; unique for its agent.
            agent: The agent that the session belongs to.
            goal: Goal of the session.
            workspace: Directory whose files become part of every commit; see `workspace()`.
            files: "inplace" or "private"; see `workspace()`.
            engine: Engine of the machine; see `workspace()`.
            budget: Limits of a new session, such as {"usd": 5.0}. `s.budget(usd=...)` changes them
                later.
            durability: When an event is on disk: "event" (before the verb returns), "group" (within
                milliseconds) or "commit" (with the next commit).
            commit: When the session commits automatically: "manual", "action", "milestone",
                {"minutes": 5} or {"cost": 3.0}.
            profile: Name of a set of policies (docs/profiles.md). `durability`, `commit`,
                `handover` and `environment` override it.
            parent: Session that this one works for. Spending counts against the budget of the
                parent.
            replay: True starts at the first event and returns recorded outcomes. "live" continues
                on a new timeline at the first action that was not recorded.
            handover: Directory in the workspace for handover files, written at each commit. ""
                writes none.
            environment: When the environment is probed: "asked" (only by `s.environment()`), "ends"
                (also when the session is opened and released) or "commit" (also at each commit).
            limits: Limits of the live machine, such as {"memory": "2G", "cpu": 1.5, "pids": 500}.
            network: "none", "outbound", or "host", which also reaches the loopback of this host.
            scopes: Shared memories beside the agent's: "user:NAME", "project:NAME". With a user
                scope, episodes are shared with that user's sessions and not with all sessions of
                the agent.
            reopen: Open the session also if it was finished with `s.finish()`.
            wait: Seconds to wait while another process or handle has the session open.

        Returns:
            The open session. Leaving its `with` block pauses it.

        Raises:
            Refused: kind "lease_held", if another process has the session open.
            Conflict: kind "session_closed", if the session is archived, or finished and `reopen` is
                False.
            Diverged: In a replay, at the first action that was not recorded.
            Invalid: If an argument is not valid.
        """
        from ortet.sessions.memory.shared_scopes import check_scopes
        from ortet.sessions.profiles import OpenOptions

        optional(DICT, budget=budget, limits=limits)
        optional(TEXT, profile=profile, handover=handover, network=network)
        held = None if limits is None else dict(limits)
        sessions = self.internals.session_manager
        place = self._files_location(workspace, files, engine, limits=held, network=network)
        works_for = "" if parent in (None, "") else sessions.table.resolve(parent)
        chosen = (durability, commit, profile, works_for, replay, handover, environment)
        require(FLAG, reopen=reopen)
        require(NUMBER, wait=wait)
        manner = OpenOptions(*chosen, check_scopes(scopes), reopen, wait)
        return sessions.open(
            name, agent=agent, goal=goal, budget=budget, location=place, options=manner
        )

    def _files_location(
        self,
        workspace: str | os.PathLike[str] | None,
        files: FilesMode | None,
        engine: str,
        *,
        limits: dict[str, Any] | None,
        network: str | None,
    ) -> FilesLocation:
        """Return where the session has its files. Raise Invalid if the arguments contradict."""
        from ortet.sessions.starting import FilesLocation

        if workspace is not None:
            directory = check_outside_store(self.store.root, existing_directory(workspace))
            # raises Invalid if the arguments contradict
            self.workspaces.resolve_files_and_engine(engine, files)
            return FilesLocation(os.fspath(directory), engine, files, limits, network)
        if files == "inplace":
            raise Invalid("bad_workspace", "files='inplace' of which directory? give workspace=")
        if engine != "auto" or files is not None:
            self.workspaces.resolve_files_and_engine(engine, "private" if files is None else files)
        return FilesLocation(engine=engine, files=files, limits=limits, network=network)

    def sessions(self) -> list[SessionRow]:
        """Return the rows of all sessions, oldest first."""
        return self.internals.session_manager.all()

    def get(self, session: str) -> SessionReader:
        """Return a read-only view of a session. It needs no lease.

        Args:
            session: Id, name, or agent/name.

        Raises:
            NotFound: If there is no such session.
        """
        sessions = self.internals.session_manager
        return sessions.get(sessions.table.resolve(session))

    @property
    def vault(self) -> Vault:
        """Encrypted secrets by name. They are never part of a commit."""
        return self.store.vault

    @property
    def swarms(self) -> SwarmRunner:
        """Runs swarms and reads those that were run before."""
        return self._options.swarms

    def is_open(self, session: str) -> bool:
        """Return True if a live process on any host has the session with this id open."""
        check_text(session=session)
        return self.internals.session_manager.is_leased(session)

    # workspaces

    def workspace(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        name: str | None = None,
        engine: str = "auto",
        files: FilesMode | None = None,
        scope: RootScope | None = None,
        limits: Mapping[str, Any] | None = None,
        network: str | None = None,
    ) -> Workspace:
        """Open a directory as a workspace and continue at its head commit.

        A directory that is opened for the first time becomes a new workspace.

        Args:
            path: The directory. Leave it out to open a known workspace by `name`.
            name: Name of a new workspace. The default is the base name of the directory.
            engine: "folder", "overlay", "criu" or "auto". Forks use a named engine too; with "auto"
                they use the best engine of the host.
            files: "inplace" works in the directory itself. "private" works on a copy and leaves the
                directory untouched until `land`. The engines "overlay" and "criu" are always
                private. The default is "inplace" for the other engines.
            scope: Which directory tree a private machine covers. The default comes from the store
                settings.
            limits: Limits of the live machine, such as {"memory": "2G", "cpu": 1.5, "pids": 500}.
                They are stored for forks and later opens.
            network: "none", "outbound", or "host", which also reaches the loopback of this host. It
                is stored for forks and later opens.

        Returns:
            The open workspace. Leaving its `with` block closes it.

        Raises:
            Invalid: If the directory, name, engine or files mode is not valid.
            Conflict: kind "name_taken", if the directory is a workspace of another name.
            Refused: kind "other_host", if the files are in a directory of another host.
            Unsupported: If this host cannot run the engine.
        """
        return self.workspaces.open(
            path,
            name=name,
            engine=engine,
            files=files,
            scope=scope,
            limits=limits,
            network=network,
        )

    # history

    def log(self, ref: Ref = "HEAD", *, limit: int | None = None) -> list[CommitInfo]:
        """Return the commits that are reachable from `ref`, newest first.

        Args:
            ref: A branch, tag, commit id or its prefix. "HEAD" is the only branch of the store, if
                it has exactly one.
            limit: Largest number of commits to return.

        Raises:
            NotFound: If the ref does not exist.
        """
        return list(self.history.log(self.refs.resolve(ref), limit=limit))

    def show(self, ref: Ref) -> CommitInfo:
        """Return the commit that `ref` names.

        Raises:
            NotFound: If the ref does not exist.
        """
        return self.history.info(self.refs.resolve(ref))

    def branches(self) -> dict[str, str]:
        """Return the branches of the store.

        Returns:
            The commit id, in hexadecimal digits, that each branch is at. Sorted by name.
        """
        return {head.name: head.oid.hex() for head in self.refs.branches()}

    def tags(self) -> dict[str, str]:
        """Return the tags of the store. They are for all sessions and workspaces.

        Returns:
            The commit id, in hexadecimal digits, of each tag. Sorted by name.
        """
        return {head.name: head.oid.hex() for head in self.refs.tags()}

    def tag(self, name: str, ref: Ref = "HEAD") -> CommitInfo:
        """Give a commit a name that does not move.

        A tagged commit is kept by every sweep.

        Args:
            name: The name of the new tag.
            ref: A branch, tag, commit id or its prefix. "HEAD" is the only branch of the store, if
                it has exactly one.

        Returns:
            The commit that the tag names.

        Raises:
            NotFound: If the ref does not exist.
            Conflict: kind "head_moved", if there is a tag of this name.
            Invalid: If the name cannot be the name of a tag.
        """
        oid = self.refs.resolve(ref)
        self.refs.create(name, oid, kind="tag", actor=self.store.author)
        return self.history.info(oid)

    def diff(self, old: Ref, new: Ref) -> list[TreeChange]:
        """Compare the files of two commits.

        Returns:
            One entry for each path that was added, removed or changed from `old` to `new`.

        Raises:
            NotFound: If a ref does not exist, or its commit has no files.
        """
        before, after = (self.history.image(self.refs.resolve(ref)) for ref in (old, new))
        return diff_images(self.trees, before, after)

    def restore(
        self, ref: Ref, to: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> Report:
        """Write the workspace files of a commit into a new directory.

        This does not move a branch and does not change a workspace.

        Args:
            ref: A branch, tag or commit.
            to: The new directory. It must be outside the store.
            progress: Called with (done, total) during the work.

        Returns:
            A report with the parts that could not be restored on this host.
        """
        from ortet.machines.restore.checkout import checkout_image, recorded_restore

        target = check_outside_store(self.store.root, real_path(to))
        image = self.history.image(self.refs.resolve(ref))
        with recorded_restore(self.store.root / "local", target):
            return checkout_image(self.objects, self.trees, image, target, progress=progress)

    # memory of all sessions

    @cached_property
    def memory(self) -> MemoryQueries:
        """Recall, episodes, consolidation and comparison of the memories of all sessions."""
        from ortet.hub.memory_queries import MemoryQueries

        return MemoryQueries(self.internals.session_manager)

    def recall(
        self,
        query: str,
        k: int = 10,
        *,
        agent: Collection[str] | str | None = None,
        session: str | None = None,
        tiers: Collection[str] | str | None = None,
        at: Moment | None = None,
        on: Moment | None = None,
        since: Moment | None = None,
        scope: str | None = None,
        explain: bool = False,
    ) -> RecallResult:
        """Return the `k` memories that match a query best, from all sessions.

        Args:
            query: The question, in natural language.
            k: Largest number of hits.
            agent: Search only sessions of this agent, or of these agents.
            session: Search only this session and the scopes that it shares.
            tiers: Search only "working" (messages), "episodic" (episodes) or "semantic" (facts).
            at: Search only what was recorded up to this time.
            on: Return only facts that are valid at this time.
            since: Return only memories from this time on.
            scope: Search only this shared scope, such as "user:NAME".
            explain: Fill `scores` of each hit with the parts of its score.

        Returns:
            Hits, best first. `text` is the exact stored text, `source` its event.

        `Session.recall` searches one open session.
        """
        return self.memory.recall(
            query,
            k,
            agent=agent,
            session=session,
            tiers=tiers,
            at=at,
            on=on,
            since=since,
            scope=scope,
            explain=explain,
        )

    # sessions without their lease

    @cached_property
    def _inbox(self) -> InboxApi:
        from ortet.hub.inbox_api import InboxApi

        return InboxApi(self.internals.session_manager)

    def comment(self, session: str | SessionReader, text: str, *, by: str = "") -> Event:
        """Send a comment to a session, also while another process writes to it.

        A comment never causes a conflict. Readers see it at once. The writer moves it to the
        journal at its next action or commit.

        Args:
            session: The session, its id, its name, or agent/name.
            text: The comment.
            by: Author of the comment. The default is the author of the hub.

        Returns:
            The event as it is in the inbox.

        Raises:
            Invalid: kind "bad_comment", if the text is empty or not text.
            Conflict: kind "session_closed", if the session is closed or archived.
        """
        return self._inbox.comment(session, text, by=by)

    def approve(
        self,
        session: str | SessionReader,
        approval: str,
        *,
        by: str = "",
        ok: bool = True,
        why: str = "",
    ) -> Approval:
        """Answer an approval request of a session. The first answer counts.

        Args:
            session: The session, its id, its name, or agent/name.
            approval: Id of the approval request.
            by: Author of the answer. The default is the author of the hub.
            ok: False denies the request.
            why: Reason for the answer.

        Returns:
            The approval with the answer that counts, which may be an earlier one.

        Raises:
            NotFound: If the session has no such approval request.
            Conflict: kind "session_closed", if the session is closed or archived.
        """
        return self._inbox.approve(session, approval, by=by, ok=ok, why=why)

    def whatif(
        self,
        session: str | SessionReader,
        at: int,
        *,
        machine: bool = True,
        message: Any = UNSET,
        result: Any = UNSET,
        error: str | UnsetType = UNSET,
    ) -> Session:
        """Fork a session at an event, with that event changed, and continue live.

        The session itself does not change. Another process may write to it at the same time.

        Args:
            session: The session, its id, its name, or agent/name.
            at: Number of the event to change.
            machine: False forks without files and processes.
            message: Other content of a message.
            result: Other outcome of an action.
            error: Failure of an action instead of its outcome.

        Returns:
            The new session. Its files are those of the last commit before the event.

        Raises:
            Invalid: kind "bad_change", unless exactly one of message, result and error is given,
                and it fits the event.
            NotFound: If there is no such event, or it was erased.
        """
        return self._inbox.whatif(
            session, at, machine=machine, message=message, result=result, error=error
        )

    def diff_runs(self, a: str | SessionReader, b: str | SessionReader) -> RunDiff:
        """Compare the events of two sessions.

        Args:
            a: The first session, or its name or id.
            b: The second session, or its name or id.

        Returns:
            The point where the two runs diverge and what each did after it. `str()` of it is
                readable text.
        """
        return self._inbox.diff_runs(a, b)

    # stateless use: no process keeps the session open

    def turn(
        self,
        session: str,
        message: Any,
        *,
        role: str = "user",
        agent: str = "default",
        reply: Callable[[Session], Any] | None = None,
        wait: float = 10.0,
    ) -> list[Message]:
        """Run one turn of a conversation: open the session, say the message, commit, release it.

        Any process can run the next turn.

        Args:
            session: Name of the session. It is created if it does not exist.
            message: Content of the message.
            role: Role of the message.
            agent: Agent of the session.
            reply: Function that gets the open session and returns the answer of the assistant.
            wait: Seconds to wait while another process or handle has the session open.

        Returns:
            The message, and the answer if `reply` is given.

        Raises:
            Invalid: kind "no_reply", if `reply` returns None.
            Refused: kind "lease_held", if another process has the session open for longer.
        """
        optional(CALLABLE, reply=reply)
        require(NUMBER, wait=wait)
        sessions = self.internals.session_manager
        return sessions.turn(session, message, role=role, agent=agent, reply=reply, wait=wait)

    # maintenance and transfer

    @cached_property
    def maintenance(self) -> Maintenance:
        """Verification, garbage collection and clean-up of the store."""
        from ortet.hub.maintenance import Maintenance

        return Maintenance(self.workspaces, lambda: self.internals.session_manager)

    @cached_property
    def transfer(self) -> Transfer:
        """Copies of branches and tags to and from other stores and bundles."""
        from ortet.hub.transfer import Transfer

        return Transfer(self.store, lambda: self.internals.session_manager)

    def verify(
        self,
        *,
        progress: Progress | None = None,
        repair: bool = False,
        sample: float = 1.0,
        restore: bool = False,
    ) -> VerifyReport:
        """Recompute every hash, follow every reference and check every event chain.

        Args:
            progress: Called with (done, total) during the work.
            repair: First write the rows of effects again that are missing, damaged or behind the
                journals.
            sample: Read only this fraction of the stored data, chosen at random.
            restore: Also restore the files of every branch and tag, and compare them.

        Returns:
            Counts of what was checked. The report has no problems.

        Raises:
            Corrupt: kind "verify_failed". `details["report"]` lists the problems.
        """
        return self.maintenance.verify(
            progress=progress, repair=repair, sample=sample, restore=restore
        )

    def sweep(
        self,
        *,
        dry_run: bool = False,
        expire_ns: int | None = None,
        min_garbage: float | None = None,
        progress: Progress | None = None,
    ) -> SweepReport:
        """Delete objects that nothing refers to (garbage collection).

        Args:
            dry_run: Only report; delete nothing.
            expire_ns: First expire reflog entries older than this age in nanoseconds, so that their
                commits can be deleted.
            min_garbage: Rewrite a pack if more than this fraction of it is garbage.
            progress: Called with (done, total) during the work.

        Returns:
            Counts and bytes that were freed, or with `dry_run` would be.

        In a store that several hosts share, packs of the last hour are kept.
        """
        return self.maintenance.sweep(
            dry_run=dry_run, expire_ns=expire_ns, min_garbage=min_garbage, progress=progress
        )

    def drop(self, name: str, *, discard: bool = False) -> None:
        """Delete a workspace and the files of its machine. Its branch and commits stay.

        Private files that are not committed are committed first.

        Args:
            name: Name of the workspace.
            discard: Delete uncommitted private files without a commit.

        Raises:
            NotFound: If there is no such workspace.
            Conflict: If another process has the machine open. Nothing is changed then.
        """
        self.maintenance.drop(name, discard=discard)

    def export(
        self,
        refs: Ref | Sequence[Ref],
        path: str | os.PathLike[str],
        *,
        progress: Progress | None = None,
    ) -> BundleReport:
        """Write commits, with all objects that they need, to one bundle file.

        Args:
            refs: One or several branches, tags or commits.
            path: The file to write.
            progress: Called with (done, total) during the work.

        Raises:
            NotFound: If a ref does not exist.
        """
        return self.transfer.export(refs, path, progress=progress)

    def import_(
        self, path: str | os.PathLike[str], *, progress: Progress | None = None
    ) -> dict[str, str]:
        """Read a bundle file and create its branches.

        All objects are verified before a branch is created. A branch name that is taken gets a
        number.

        Args:
            path: The bundle file.
            progress: Called with (done, total) during the work.

        Returns:
            Map from branch name to commit id.

        Raises:
            Invalid: If the file is not a bundle.
            Refused: kind "bundle_too_large", if there is not enough free space.
        """
        return self.transfer.import_(path, progress=progress)

    def pull(
        self,
        other: Hub | str | os.PathLike[str],
        refs: str | Sequence[str] = (),
        *,
        progress: Progress | None = None,
    ) -> TransferReport:
        """Copy branches and tags from another hub or a bundle into this store.

        Only missing objects are sent, and they are verified. After an interruption, the next call
        does not send the same objects again. A branch that is ahead in the other store moves
        forward here. A branch that has diverged, or is in use here, is created under a name with a
        number.

        Args:
            other: An open hub, or the path of a bundle.
            refs: Names of branches and tags. The default is all.
            progress: Called with (done, total) during the work.

        Raises:
            NotFound: kind "no_ref", if a name does not exist in the other store.
        """
        peer = other.transfer if isinstance(other, Hub) else other
        return self.transfer.pull(peer, refs, progress=progress)

    def push(
        self,
        other: Hub | str | os.PathLike[str],
        refs: str | Sequence[str] = (),
        *,
        progress: Progress | None = None,
    ) -> TransferReport:
        """Copy branches and tags to another hub or a bundle.

        A bundle file is always written as a whole.

        Args:
            other: An open hub, or the path of a bundle.
            refs: Names of branches and tags. The default is all.
            progress: Called with (done, total) during the work.

        Raises:
            Conflict: kind "not_forward", if a branch has diverged there or is in use there. Nothing
                is sent then.
            NotFound: kind "no_ref", if a name does not exist in this store.
        """
        peer = other.transfer if isinstance(other, Hub) else other
        return self.transfer.push(peer, refs, progress=progress)

    # governance

    @cached_property
    def governance(self) -> Governance:
        """Audit, erasure, archives, retention, holds and data sets."""
        from ortet.hub.governance.service import Governance

        return Governance(self.internals.session_manager)

    def audit(self, session: str | SessionReader) -> AuditReport:
        """Check the whole hash chain of a session, and list who did what, when and why.

        Args:
            session: The session, its id, its name, or agent/name.

        Returns:
            One line for each event, the erasure receipts, and the hash of the last event.

        Raises:
            Corrupt: If an event is not the one that was recorded. The message names the first one.
        """
        return self.governance.audit(session)

    def erase(
        self,
        session: str | SessionReader | None = None,
        *,
        seqs: Sequence[int] | None = None,
        user: str | None = None,
    ) -> ErasureReceipt:
        """Destroy the content of events in rows, objects and folds.

        The record that the events happened stays. Spent amounts stay. Forks lose the events that
        they share. If the call is interrupted, the next call finishes it.

        Args:
            session: Erase everything that this session did itself. With `user`, only that user's
                part.
            seqs: Erase only these events of the session.
            user: Erase what this actor did and messages with user=NAME, in `session` or in all
                sessions.

        Returns:
            A signed receipt. If `complete` is False, repeat the call when the other process has
                ended.

        Raises:
            Invalid: If no session or user is given, or an event does not exist.
            Refused: kind "lease_held", if a session is open; "on_hold", if one is on hold.
            Unsupported: kind "shared_store", if several hosts share the store.
        """
        return self.governance.erase(session, seqs=seqs, user=user)

    def bill(self, *, since: Since = None, by: GroupBy = "session") -> list[Bill]:
        """Return what was spent, in totals by agent, session, model or day.

        Args:
            since: Count from this time on. The default is everything.
            by: "agent", "session", "model" or "day".

        Raises:
            Invalid: kind "bad_bill", if `by` is another word.
        """
        return self.governance.bill(since=since, by=by)

    def archive(self, session: str | SessionReader, why: str = "") -> ArchiveRecord:
        """Move a paused or closed session to one verified bundle in the bucket.

        Its event rows are trimmed. The session can still be read. If the call is interrupted, call
        it again.

        Args:
            session: The session, its id, its name, or agent/name.
            why: Reason, for the journal.

        Raises:
            Conflict: If the status does not allow it, for example because the session is in use.
            Refused: kind "on_hold", if the session is on hold.
        """
        return self.governance.archive(session, why)

    def unarchive(self, session: str | SessionReader) -> SessionRow:
        """Restore an archived session. It is paused, or closed if it was closed before.

        Raises:
            Corrupt: kind "no_archive", if the bundle is not in the bucket.
        """
        return self.governance.unarchive(session)

    def remove(self, session: str | SessionReader) -> None:
        """Remove a session and its events. Its commits stay until their reflog entries expire.

        Raises:
            Refused: kind "lease_held", if the session is open; "on_hold", if it is on hold.
        """
        self.governance.remove(session)


def hub_of(session: SessionReader) -> Hub:
    """Return the hub that opened a session."""
    hub = session.internals.services.hub
    assert isinstance(hub, Hub)
    return hub


def drop_fork(hub: Hub, id_: str, branch: str) -> None:
    """Remove a fork with its files. Its commits stay until the reflog expires.

    A fork that is open, or under a retention hold, is kept.
    """
    with suppress(Refused, NotFound):
        if hub.is_open(id_):
            return
        if hub.workspaces.table.get(branch) is not None:
            hub.drop(branch, discard=True)
        hub.remove(id_)
