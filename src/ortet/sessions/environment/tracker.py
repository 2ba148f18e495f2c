"""The environment of an open session: probes, recorded changes and variables of commands."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, overload

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
from ortet.journal.state.state import SessionState
from ortet.sessions.context import SessionContext
from ortet.sessions.environment.environments import environment_at_commit, recorded_environments
from ortet.sessions.environment.probe import probe_environment
from ortet.sessions.environment.rooted import ProbeTarget
from ortet.sessions.environment.variables import SessionVariables
from ortet.sessions.profiles import ProbePolicy
from ortet.workspaces.table import FilesMode

if TYPE_CHECKING:
    from ortet.sessions.machine.session_files import SessionFiles
    from ortet.sessions.writing.pipeline import VerbPipeline


class EnvironmentTracker:
    """Probes the environment of an open session and records what changed.

    `policy` says when it probes by itself.
    """

    def __init__(
        self, context: SessionContext, pipeline: VerbPipeline, policy: ProbePolicy
    ) -> None:
        self._context = context
        self._pipeline = pipeline
        self._policy = policy
        self._files: SessionFiles
        self._recorded_environment: Environment | None = None  # once loaded
        self._variables: SessionVariables | None = None  # variables of its commands, once needed
        self._may_have_changed = False  # True after an action: commands change the environment

    def connect(self, files: SessionFiles) -> None:
        """Probe the workspace of these files."""
        self._files = files

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
        self._pipeline.check_open()
        if not self._context.is_replaying:
            self._files.workspace()  # some parts can be probed only inside a running machine
        if compare is False:
            return self.probe(on_request=True)
        return self._compare_environment(self._environment_at(compare))

    # automatic runs

    def before_action(self) -> None:
        self._may_have_changed = True

    def before_commit(self) -> None:
        """Record the environment before the files are captured."""
        if self._policy == "commit" and self._files.workspace() is not None:
            self.probe(on_request=True)
        elif self._policy == "ends" and self._files.workspace() is not None:
            self._record_variables()

    def before_move(self, verb: str) -> None:
        """Nothing: the environment stays as it is."""

    def switch_timeline(self) -> None:
        """Forget what was recorded on the timeline that the session left."""
        self._recorded_environment = None

    def probe_on_open(self) -> None:
        """Probe after opening: the session may be on another host now."""
        store = self._context.store
        self._variables = SessionVariables(store.environ, store.initial_environ)
        if self._policy != "asked":
            self._probe_automatically()

    def probe_on_release(self) -> None:
        """Probe before the session is released, if something may have changed."""
        stirred = (
            self._may_have_changed
            or self._files.attached is not None
            or bool(self.session_variables.changed)
        )
        if stirred and self._policy != "asked":
            self._probe_automatically()

    # probing

    def _probe_automatically(self) -> None:
        """Probe if that needs no start of a machine. A failure is ignored until the next probe."""
        if self._probe_target().path:
            with suppress(OrtetError, OSError):
                self.probe(on_request=False)

    def probe(self, *, on_request: bool) -> Environment:
        """Return the present environment, and record it if it changed.

        In a replay, return the environment recorded up to the present position.
        """
        if self._context.is_replaying:
            return self._known_environment() or EMPTY_ENVIRONMENT
        known, mine, store = self._known_environment(), self.session_variables, self._context.store
        then = (known or EMPTY_ENVIRONMENT).variables
        found = probe_environment(
            self._probe_target(),
            mine.visible(then),
            store.initial_environ,
            process_environ=store.environ,
        )
        now = msgspec.structs.replace(found, variables=mine.record(then))
        self._record_environment(changed_parts(known, now), now, on_request=on_request)
        self._may_have_changed = False
        return now

    def _record_variables(self) -> None:
        """Record changed variables only, for a commit without a probe. Comparing them is cheap."""
        if not self.session_variables.changed:
            return
        known = self._known_environment()
        if known is None:
            self.probe(on_request=True)
            return
        now = msgspec.structs.replace(
            known, variables=self.session_variables.record(known.variables)
        )
        self._record_environment(changed_parts(known, now), now, on_request=True)

    def _record_environment(
        self, parts: Mapping[str, Any], now: Environment, *, on_request: bool
    ) -> None:
        if parts:
            self._check_secrets(now)
            if on_request:
                self._pipeline.begin_change()
            data = {"parts": parts, **({"asked": True} if on_request else {})}
            self._pipeline.writer.add(Draft("environment", data, self._context.store.author))
        self._recorded_environment = now
        self.session_variables.mark_recorded()

    def _check_secrets(self, now: Environment) -> None:
        known = self._context.store.secrets.scanner()
        for name, one in now.variables.items() if known else ():
            if known and one.value:
                known.text(one.value, f"variable {name}")

    def _known_environment(self) -> Environment | None:
        if self._context.is_replaying:
            return recorded_environments(self._context)[1]
        if self._recorded_environment is None:
            self._recorded_environment = recorded_environments(self._context)[1]
        return self._recorded_environment

    def _compare_environment(self, then: Environment | None) -> list[EnvironmentDifference]:
        """Return the differences from `then` to now; none if `then` is not known."""
        if then is None:
            return []
        known, store = (
            (self._known_environment() or EMPTY_ENVIRONMENT).variables,
            self._context.store,
        )
        seen, names = self.session_variables.visible(known), {*known, *then.variables}
        now = probe_environment(
            self._probe_target(),
            seen,
            store.initial_environ,
            names=names,
            process_environ=store.environ,
        )
        return differences(then, now)

    # variables

    def take_baseline(self) -> None:
        """Read the variables now: later changes of the process environment count as changes."""
        _ = self.session_variables

    @property
    def session_variables(self) -> SessionVariables:
        """Return the variables of the session's commands."""
        if self._variables is None:
            self._variables = SessionVariables(
                self._context.store.environ, self._context.store.initial_environ
            )
        return self._variables

    def inherit_variables(self, parent: EnvironmentTracker) -> None:
        """Start a fork with the variables of its parent."""
        self._variables = parent.session_variables.copy()

    def command_variables(self) -> Mapping[str, str | None]:
        return self.session_variables.overrides(
            (self._known_environment() or EMPTY_ENVIRONMENT).variables
        )

    def differences_after_restore(self, *, with_state: bool) -> list[EnvironmentDifference]:
        """Return the differences of the environment after a restore.

        Args:
            with_state: True if the session state was restored too.
        """
        known = recorded_environments(self._context)[1]
        if with_state:
            self.session_variables.mark_restored(known.variables if known is not None else None)
        return self._compare_environment(known)

    def _environment_at(self, ref: bool | str) -> Environment | None:
        if isinstance(ref, str):
            target = self._context.store.refs.resolve(ref, default_branch=self._context.row.branch)
            return environment_at_commit(self._context.services, target)
        core = SessionState.load(
            self._context.services.maps,
            self._context.store.objects,
            self._context.event_log.base.fold,
        ).core
        return environment_from_events(core.environment, self._context.events)

    def _probe_target(self) -> ProbeTarget:
        """Return the workspace to probe, if that needs no start of a machine."""
        attached = self._files.attached
        if attached is not None:
            path = os.fspath(attached.path)
            inside = path.startswith("/proc/")
            return ProbeTarget(
                path, attached.run if inside else None, self._files.generated_directory
            )
        if self._context.row.path and self._is_in_place():
            return ProbeTarget(self._context.row.path, None, self._files.generated_directory)
        return ProbeTarget()

    def _is_in_place(self) -> bool:
        files: FilesMode | None = "private" if self._context.row.files == "private" else None
        try:
            return (
                self._context.services.workspaces.resolve_files_and_engine(
                    self._context.row.engine, files
                )[0]
                == "inplace"
            )
        except Invalid:
            return False
