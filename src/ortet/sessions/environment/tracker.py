"""The session verbs for its environment: environment and handover, and their automatic runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import msgspec

from ortet.errors import Invalid, OrtetError
from ortet.journal.environment import (
    EMPTY_ENVIRONMENT,
    Environment,
    EnvironmentDifference,
    changed_parts,
    differences,
    environment_from_events,
)
from ortet.journal.events import Draft
from ortet.journal.reports.progress import ProgressLog
from ortet.journal.state.state import SessionState
from ortet.sessions.actions.making import ActionsMixin
from ortet.sessions.environment import handover
from ortet.sessions.environment.environments import environment_at_commit, recorded_environments
from ortet.sessions.environment.handover import Handover
from ortet.sessions.environment.probe import probe_environment
from ortet.sessions.environment.rooted import ProbeTarget
from ortet.sessions.environment.variables import SessionVariables
from ortet.sessions.history.participants import OpenSessionParticipant
from ortet.sessions.profiles import Profile
from ortet.sessions.writing.lease_handover import commit_before_release
from ortet.store.lease import WriterLease
from ortet.workspaces.table import FilesMode

if TYPE_CHECKING:
    from ortet.sessions.manager import SessionManager
    from ortet.sessions.session import Session
    from ortet.workspaces.workspace import Workspace


class EnvironmentMixin(ActionsMixin):
    """The verbs of Session that probe the environment and write handover files."""

    profile: Profile
    held_lease: WriterLease
    _sessions: SessionManager
    _participant: OpenSessionParticipant
    _files: Workspace | None
    _story: ProgressLog | None = None
    _recorded_environment: Environment | None = None  # the recorded environment, once loaded
    _variables: SessionVariables | None = None  # variables of its commands, once needed
    # True after an action: commands may have changed the environment
    _environment_may_have_changed = False
    _last_handover_error = ""  # why the last automatic handover failed

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
        self._check_open()
        self._start_machine_for_probe()
        if compare is False:
            return self._probe_environment(on_request=True)
        return self._compare_environment(self._environment_at(compare))

    def handover(self, directory: str | os.PathLike[str]) -> Handover:
        """Write feature_list.json, progress.md and BRIEFING.md for the next worker.

        Files with equal content are left alone.

        Args:
            directory: where to write, relative to the workspace if there is one.

        Raises:
            Conflict: a file was not written by a handover. Nothing is written.
        """
        self._check_open()
        place = handover.check_directory(directory, inside=False)
        root = self._root()
        below = None if root is None or os.path.isabs(place) else os.fspath(root)
        return self._write_handover(place, below)

    # automatic runs

    @property
    def generated_directory(self) -> str:
        """Return the workspace directory of the handover files; "" if there is none."""
        return self.profile.handover if self.profile.briefing else ""

    def probe_on_open(self) -> None:
        """Probe after opening: the session may be on another host now."""
        self._variables = SessionVariables(self._store.environ, self._store.initial_environ)
        if self.profile.environment != "asked":
            self._probe_automatically()

    def _probe_on_release(self) -> None:
        stirred = (
            self._environment_may_have_changed
            or self._files is not None
            or bool(self._session_variables.changed)
        )
        if stirred and self.profile.environment != "asked":
            self._probe_automatically()
        commit_before_release(cast("Session", self))

    def _before_commit(self) -> None:
        """Record the environment and write handover files before the files are captured."""
        if self.profile.environment == "commit" and self._workspace() is not None:
            self._probe_environment(on_request=True)
        elif self.profile.environment == "ends" and self._workspace() is not None:
            self._record_variables()
        if self.profile.briefing and (self._participant.dirty or self.head is None):
            self._write_handover_automatically()

    def _write_handover_automatically(self) -> None:
        """Write handover files. A failure is recorded as a warning, once for each cause."""
        root = self._root()
        if root is None:
            return
        try:
            self._write_handover(self.profile.handover, os.fspath(root))
            self._last_handover_error = ""
        except OrtetError as error:
            if self._last_handover_error != error.kind:
                self._last_handover_error = error.kind
                data = {"what": "handover", "kind": error.kind, "error": str(error)}
                self._writer.add(Draft("warning", data, self._store.author))

    def _write_handover(self, directory: str, below: str | None) -> Handover:
        if self._story is None:
            self._story = ProgressLog()
        return handover.write(directory, handover.contents(self, self._story), below=below)

    def _check_chain(self) -> None:
        """Verify the event chain if the profile says so. Raise Corrupt if an event is damaged."""
        if self.profile.audit and not self.held_lease.is_released:
            self._writer.flush()
            self._sessions.hub.audit(self.id)

    # probing

    @contextmanager
    def _action_scope(self) -> Iterator[None]:
        self._environment_may_have_changed = True
        with super()._action_scope():
            yield

    def _start_machine_for_probe(self) -> None:
        """Start the machine: some parts can be probed only inside a running one."""
        self._workspace()

    def _probe_automatically(self) -> None:
        """Probe if that needs no start of a machine. A failure is ignored until the next probe."""
        if self._probe_target().path:
            with suppress(OrtetError, OSError):
                self._probe_environment(on_request=False)

    def _probe_environment(self, *, on_request: bool) -> Environment:
        """Return the present environment, and record it if it changed."""
        known, mine, store = self._known_environment(), self._session_variables, self._store
        then = (known or EMPTY_ENVIRONMENT).variables
        found = probe_environment(
            self._probe_target(),
            mine.visible(then),
            store.initial_environ,
            process_environ=store.environ,
        )
        now = msgspec.structs.replace(found, variables=mine.record(then))
        self._record_environment(changed_parts(known, now), now, on_request=on_request)
        self._environment_may_have_changed = False
        return now

    def _record_variables(self) -> None:
        """Record changed variables only, for a commit without a probe. Comparing them is cheap."""
        if not self._session_variables.changed:
            return
        known = self._known_environment()
        if known is None:
            self._probe_environment(on_request=True)
            return
        now = msgspec.structs.replace(
            known, variables=self._session_variables.record(known.variables)
        )
        self._record_environment(changed_parts(known, now), now, on_request=True)

    def _record_environment(
        self, parts: Mapping[str, Any], now: Environment, *, on_request: bool
    ) -> None:
        if parts:
            self._check_secrets(now)
            if on_request:
                self._begin_change()
            data = {"parts": parts, **({"asked": True} if on_request else {})}
            self._writer.add(Draft("environment", data, self._store.author))
        self._recorded_environment = now
        self._session_variables.mark_recorded()

    def _check_secrets(self, now: Environment) -> None:
        known = self._store.secrets.scanner()
        for name, one in now.variables.items() if known else ():
            if known and one.value:
                known.text(one.value, f"variable {name}")

    def _known_environment(self) -> Environment | None:
        if self._recorded_environment is None:
            self._recorded_environment = recorded_environments(self)[1]
        return self._recorded_environment

    def _compare_environment(self, then: Environment | None) -> list[EnvironmentDifference]:
        """Return the differences from `then` to now; none if `then` is not known."""
        if then is None:
            return []
        known, store = (self._known_environment() or EMPTY_ENVIRONMENT).variables, self._store
        seen, names = self._session_variables.visible(known), {*known, *then.variables}
        now = probe_environment(
            self._probe_target(),
            seen,
            store.initial_environ,
            names=names,
            process_environ=store.environ,
        )
        return differences(then, now)

    # variables

    @property
    def _session_variables(self) -> SessionVariables:
        """Return the variables of the session's commands."""
        if self._variables is None:
            self._variables = SessionVariables(self._store.environ, self._store.initial_environ)
        return self._variables

    def inherit_variables(self, parent: EnvironmentMixin) -> None:
        """Start a fork with the variables of its parent."""
        self._variables = parent._session_variables.copy()

    def _command_variables(self) -> Mapping[str, str | None]:
        return self._session_variables.overrides(
            (self._known_environment() or EMPTY_ENVIRONMENT).variables
        )

    def _differences_after_restore(self, *, with_state: bool) -> list[EnvironmentDifference]:
        """Return the differences of the environment after a restore.

        Args:
            with_state: True if the session state was restored too.
        """
        known = recorded_environments(self)[1]
        if with_state:
            self._session_variables.mark_restored(known.variables if known is not None else None)
        return self._compare_environment(known)

    def _environment_at(self, ref: bool | str) -> Environment | None:
        if isinstance(ref, str):
            target = self._store.refs.resolve(ref, default_branch=self._row.branch)
            return environment_at_commit(self._sessions, target)
        core = SessionState.load(
            self._sessions.maps, self._store.objects, self._event_log.base.fold
        ).core
        return environment_from_events(core.environment, self.events)

    def _probe_target(self) -> ProbeTarget:
        """Return the workspace to probe, if that needs no start of a machine."""
        if self._files is not None:
            path = os.fspath(self._files.path)
            inside = path.startswith("/proc/")
            return ProbeTarget(path, self._files.run if inside else None, self.generated_directory)
        if self._row.path and self._is_in_place():
            return ProbeTarget(self._row.path, None, self.generated_directory)
        return ProbeTarget()

    def _is_in_place(self) -> bool:
        files: FilesMode | None = "private" if self._row.files == "private" else None
        try:
            return (
                self._sessions.workspaces.resolve_files_and_engine(self._row.engine, files)[0]
                == "inplace"
            )
        except Invalid:
            return False
