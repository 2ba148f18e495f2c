"""The verbs of a session about what surrounds it: environment, and handover to the next worker."""

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
from ortet.sessions.history.cross_host_files import commit_before_release
from ortet.sessions.history.host import OpenSessionParticipant
from ortet.sessions.profiles import Profile
from ortet.store.lease import HeldLease
from ortet.workspaces.table import FilesMode

if TYPE_CHECKING:
    from ortet.sessions.manager import SessionManager
    from ortet.sessions.session import Session
    from ortet.workspaces.workspace import Workspace


class EnvironmentMixin(ActionsMixin):
    """The half of Session that looks around, and leaves word for others."""

    profile: Profile
    held_lease: HeldLease
    _sessions: SessionManager
    _participant: OpenSessionParticipant
    _files: Workspace | None
    _story: ProgressLog | None = None
    _recorded_environment: Environment | None = None  # what is recorded, once it was read
    _variables: SessionVariables | None = None  # of its commands, once it was opened or asked for
    _environment_may_have_changed = False  # commands may have changed what surrounds it
    _last_handover_error = ""  # why the last handover by policy failed

    @overload
    def environment(self) -> Environment: ...

    @overload
    def environment(self, *, compare: Literal[True] | str) -> list[EnvironmentDifference]: ...

    def environment(
        self, *, compare: bool | str = False
    ) -> Environment | list[EnvironmentDifference]:
        """Look at what surrounds the workspace and does not come back with its files, and record
        what changed: packages, variables, hosts, resolver, the state of its repository.

        Variables are those that its commands see: recorded ones are given back to them, unless
        this process has changed them since it was opened or restored.

        With `compare`, nothing is recorded: the answer is how the surroundings now differ from
        those of the head commit, or of the commit it names.
        """
        self._check_open()
        self._start_machine_for_probe()
        if compare is False:
            return self._probe_environment(on_request=True)
        return self._compare_environment(self._environment_at(compare))

    def handover(self, directory: str | os.PathLike[str]) -> Handover:
        """Write feature_list.json, progress.md and BRIEFING.md for the next worker into a
        directory, relative to the workspace where there is one.

        A file that holds the same is left alone; one that is not ours is a Conflict, and then
        nothing is written.
        """
        self._check_open()
        place = handover.check_directory(directory, inside=False)
        root = self._root()
        below = None if root is None or os.path.isabs(place) else os.fspath(root)
        return self._write_handover(place, below)

    # by policy

    @property
    def generated_directory(self) -> str:
        """The directory of the workspace that it writes handover files to; "": to none."""
        return self.profile.handover if self.profile.briefing else ""

    def probe_on_open(self) -> None:
        """It was opened, somewhere: what surrounds it there may be another."""
        self._variables = SessionVariables(self._hub.environ, self._hub.initial_environ)
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
        """What has to be there when the files are looked at."""
        if self.profile.environment == "commit" and self._workspace() is not None:
            self._probe_environment(on_request=True)
        elif self.profile.environment == "ends" and self._workspace() is not None:
            self._record_variables()
        if self.profile.briefing and (self._participant.dirty or self.head is None):
            self._write_handover_automatically()

    def _write_handover_automatically(self) -> None:
        """A commit does not fail for it: the warning is recorded, once for each cause."""
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
                self._writer.add(Draft("warning", data, self._hub.author))

    def _write_handover(self, directory: str, below: str | None) -> Handover:
        if self._story is None:
            self._story = ProgressLog()
        return handover.write(directory, handover.contents(self, self._story), below=below)

    def _check_chain(self) -> None:
        """Where its profile wants that; Corrupt when an event is not what was recorded."""
        if self.profile.audit and not self.held_lease.is_released:
            self._writer.flush()
            self._hub.audit(self.id)

    # looking

    @contextmanager
    def _action_scope(self) -> Iterator[None]:
        self._environment_may_have_changed = True
        with super()._action_scope():
            yield

    def _start_machine_for_probe(self) -> None:
        """What can be looked at only inside a machine needs one that runs."""
        self._workspace()

    def _probe_automatically(self) -> None:
        """Where that needs no machine to be started; what fails is looked at another time."""
        if self._probe_target().path:
            with suppress(OrtetError, OSError):
                self._probe_environment(on_request=False)

    def _probe_environment(self, *, on_request: bool) -> Environment:
        """What is there now; recorded if it changed."""
        known, mine, hub = self._known_environment(), self._session_variables, self._hub
        then = (known or EMPTY_ENVIRONMENT).variables
        found = probe_environment(
            self._probe_target(),
            mine.visible(then),
            hub.initial_environ,
            process_environ=hub.environ,
        )
        now = msgspec.structs.replace(found, variables=mine.record(then))
        self._record_environment(changed_parts(known, now), now, on_request=on_request)
        self._environment_may_have_changed = False
        return now

    def _record_variables(self) -> None:
        """For a commit that looks at nothing else: to compare them costs next to nothing."""
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
            self._writer.add(Draft("environment", data, self._hub.author))
        self._recorded_environment = now
        self._session_variables.mark_recorded()

    def _check_secrets(self, now: Environment) -> None:
        known = self._hub.known_secrets()
        for name, one in now.variables.items() if known else ():
            if known and one.value:
                known.text(one.value, f"variable {name}")

    def _known_environment(self) -> Environment | None:
        if self._recorded_environment is None:
            self._recorded_environment = recorded_environments(self)[1]
        return self._recorded_environment

    def _compare_environment(self, then: Environment | None) -> list[EnvironmentDifference]:
        """How it is now, against that; nothing when that is not known."""
        if then is None:
            return []
        known, hub = (self._known_environment() or EMPTY_ENVIRONMENT).variables, self._hub
        seen, names = self._session_variables.visible(known), {*known, *then.variables}
        now = probe_environment(
            self._probe_target(),
            seen,
            hub.initial_environ,
            names=names,
            process_environ=hub.environ,
        )
        return differences(then, now)

    # variables

    @property
    def _session_variables(self) -> SessionVariables:
        """What its commands see of the process's, and what else."""
        if self._variables is None:
            self._variables = SessionVariables(self._hub.environ, self._hub.initial_environ)
        return self._variables

    def inherit_variables(self, parent: EnvironmentMixin) -> None:
        """A fork begins with what its parent's commands see."""
        self._variables = parent._session_variables.copy()

    def _command_variables(self) -> Mapping[str, str | None]:
        return self._session_variables.overrides(
            (self._known_environment() or EMPTY_ENVIRONMENT).variables
        )

    def _differences_after_restore(self, *, with_state: bool) -> list[EnvironmentDifference]:
        """What is not as it was at the commit it has just gone to, with its `mind` or without."""
        known = recorded_environments(self)[1]
        if with_state:
            self._session_variables.mark_restored(known.variables if known is not None else None)
        return self._compare_environment(known)

    def _environment_at(self, ref: bool | str) -> Environment | None:
        if isinstance(ref, str):
            target = self._hub.refs.resolve(ref, default_branch=self._row.branch)
            return environment_at_commit(self._sessions, target)
        core = SessionState.load(
            self._sessions.maps, self._hub.objects, self._event_log.base.fold
        ).core
        return environment_from_events(core.environment, self.events)

    def _probe_target(self) -> ProbeTarget:
        """The workspace, if it can be looked at without starting a machine."""
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
            return self._hub.resolve_files_and_engine(self._row.engine, files)[0] == "inplace"
        except Invalid:
            return False
