"""The verbs of a session about what surrounds it: environment, and handover to the next worker."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import msgspec

from ortet.errors import Invalid, OrtetError
from ortet.journal.environment import (
    NOTHING,
    Difference,
    Environment,
    changes,
    compose,
    differences,
)
from ortet.journal.events import Draft
from ortet.journal.reports.progress import Story
from ortet.journal.state.state import Mind
from ortet.sessions.actions.making import Making
from ortet.sessions.environment import handover
from ortet.sessions.environment.environments import recorded_in, recorded_of
from ortet.sessions.environment.handover import Handover
from ortet.sessions.environment.probe import surroundings
from ortet.sessions.environment.rooted import Seen
from ortet.sessions.environment.variables import Variables
from ortet.sessions.history.cross_host_files import leave_ready
from ortet.sessions.history.host import Host
from ortet.sessions.profiles import Profile
from ortet.store.lease import Holding
from ortet.workspaces.table import Files

if TYPE_CHECKING:
    from ortet.sessions.manager import Sessions
    from ortet.sessions.session import Session
    from ortet.workspaces.workspace import Workspace


class Surrounded(Making):
    """The half of Session that looks around, and leaves word for others."""

    profile: Profile
    holding: Holding
    _sessions: Sessions
    _host: Host
    _files: Workspace | None
    _story: Story | None = None
    _around: Environment | None = None  # what is recorded, once it was read
    _variables: Variables | None = None  # of its commands, once it was opened or asked for
    _stirred = False  # commands may have changed what surrounds it
    _warned = ""  # why the last handover by policy failed

    @overload
    def environment(self) -> Environment: ...

    @overload
    def environment(self, *, compare: Literal[True] | str) -> list[Difference]: ...

    def environment(self, *, compare: bool | str = False) -> Environment | list[Difference]:
        """Look at what surrounds the workspace and does not come back with its files, and record
        what changed: packages, variables, hosts, resolver, the state of its repository.

        Variables are those that its commands see: recorded ones are given back to them, unless
        this process has changed them since it was opened or restored.

        With `compare`, nothing is recorded: the answer is how the surroundings now differ from
        those of the head commit, or of the commit it names.
        """
        self._live()
        self._meet()
        if compare is False:
            return self._look_around(asked=True)
        return self._compared(self._then(compare))

    def handover(self, directory: str | os.PathLike[str]) -> Handover:
        """Write feature_list.json, progress.md and BRIEFING.md for the next worker into a
        directory, relative to the workspace where there is one.

        A file that holds the same is left alone; one that is not ours is a Conflict, and then
        nothing is written.
        """
        self._live()
        place = handover.check_directory(directory, inside=False)
        root = self._root()
        below = None if root is None or os.path.isabs(place) else os.fspath(root)
        return self._hand_over(place, below)

    # by policy

    @property
    def generated(self) -> str:
        """The directory of the workspace that it writes handover files to; "": to none."""
        return self.profile.handover if self.profile.briefing else ""

    def look_at_the_start(self) -> None:
        """It was opened, somewhere: what surrounds it there may be another."""
        self._variables = Variables(self._hub.environ, self._hub.opening)
        if self.profile.environment != "asked":
            self._look_by_itself()

    def _look_at_the_end(self) -> None:
        stirred = self._stirred or self._files is not None or bool(self._own.changed)
        if stirred and self.profile.environment != "asked":
            self._look_by_itself()
        leave_ready(cast("Session", self))

    def _before_commit(self) -> None:
        """What has to be there when the files are looked at."""
        if self.profile.environment == "commit" and self._workspace() is not None:
            self._look_around(asked=True)
        elif self.profile.environment == "ends" and self._workspace() is not None:
            self._keep_variables()
        if self.profile.briefing and (self._host.dirty or self.head is None):
            self._hand_over_by_itself()

    def _hand_over_by_itself(self) -> None:
        """A commit does not fail for it: the warning is recorded, once for each cause."""
        root = self._root()
        if root is None:
            return
        try:
            self._hand_over(self.profile.handover, os.fspath(root))
            self._warned = ""
        except OrtetError as error:
            if self._warned != error.kind:
                self._warned = error.kind
                data = {"what": "handover", "kind": error.kind, "error": str(error)}
                self._ledger.add(Draft("warning", data, self._hub.author))

    def _hand_over(self, directory: str, below: str | None) -> Handover:
        if self._story is None:
            self._story = Story()
        return handover.write(directory, handover.contents(self, self._story), below=below)

    def _check_chain(self) -> None:
        """Where its profile wants that; Corrupt when an event is not what was recorded."""
        if self.profile.audit and not self.holding.ended:
            self._ledger.flush()
            self._hub.audit(self.id)

    # looking

    @contextmanager
    def _acting(self) -> Iterator[None]:
        self._stirred = True
        with super()._acting():
            yield

    def _meet(self) -> None:
        """What can be looked at only inside a machine needs one that runs."""
        self._workspace()

    def _look_by_itself(self) -> None:
        """Where that needs no machine to be started; what fails is looked at another time."""
        if self._seen().path:
            with suppress(OrtetError, OSError):
                self._look_around(asked=False)

    def _look_around(self, *, asked: bool) -> Environment:
        """What is there now; recorded if it changed."""
        known, mine, hub = self._known(), self._own, self._hub
        then = (known or NOTHING).variables
        found = surroundings(self._seen(), mine.seen(then), hub.opening, own=hub.environ)
        now = msgspec.structs.replace(found, variables=mine.record(then))
        self._note(changes(known, now), now, asked=asked)
        self._stirred = False
        return now

    def _keep_variables(self) -> None:
        """For a commit that looks at nothing else: to compare them costs next to nothing."""
        if not self._own.changed:
            return
        known = self._known()
        if known is None:
            self._look_around(asked=True)
            return
        now = msgspec.structs.replace(known, variables=self._own.record(known.variables))
        self._note(changes(known, now), now, asked=True)

    def _note(self, parts: Mapping[str, Any], now: Environment, *, asked: bool) -> None:
        if parts:
            self._check_secrets(now)
            if asked:
                self._touch()
            data = {"parts": parts, **({"asked": True} if asked else {})}
            self._ledger.add(Draft("environment", data, self._hub.author))
        self._around = now
        self._own.recorded()

    def _check_secrets(self, now: Environment) -> None:
        known = self._hub.known_secrets()
        for name, one in now.variables.items() if known else ():
            if known and one.value:
                known.text(one.value, f"variable {name}")

    def _known(self) -> Environment | None:
        if self._around is None:
            self._around = recorded_of(self)[1]
        return self._around

    def _compared(self, then: Environment | None) -> list[Difference]:
        """How it is now, against that; nothing when that is not known."""
        if then is None:
            return []
        known, hub = (self._known() or NOTHING).variables, self._hub
        seen, names = self._own.seen(known), {*known, *then.variables}
        now = surroundings(self._seen(), seen, hub.opening, names=names, own=hub.environ)
        return differences(then, now)

    # variables

    @property
    def _own(self) -> Variables:
        """What its commands see of the process's, and what else."""
        if self._variables is None:
            self._variables = Variables(self._hub.environ, self._hub.opening)
        return self._variables

    def take_after(self, parent: Surrounded) -> None:
        """A fork begins with what its parent's commands see."""
        self._variables = parent._own.copy()

    def _given(self) -> Mapping[str, str | None]:
        return self._own.over((self._known() or NOTHING).variables)

    def _since_restore(self, *, mind: bool) -> list[Difference]:
        """What is not as it was at the commit it has just gone to, with its `mind` or without."""
        known = recorded_of(self)[1]
        if mind:
            self._own.restored(known.variables if known is not None else None)
        return self._compared(known)

    def _then(self, ref: bool | str) -> Environment | None:
        if isinstance(ref, str):
            target = self._hub.refs.resolve(ref, default_branch=self._row.branch)
            return recorded_in(self._sessions, target)
        core = Mind.load(self._sessions.maps, self._hub.objects, self._line.base.fold).core
        return compose(core.environment, self.events)

    def _seen(self) -> Seen:
        """The workspace, if it can be looked at without starting a machine."""
        if self._files is not None:
            path = os.fspath(self._files.path)
            inside = path.startswith("/proc/")
            return Seen(path, self._files.run if inside else None, self.generated)
        if self._row.path and self._is_in_place():
            return Seen(self._row.path, None, self.generated)
        return Seen()

    def _is_in_place(self) -> bool:
        files: Files | None = "private" if self._row.files == "private" else None
        try:
            return self._hub.how(self._row.engine, files)[0] == "inplace"
        except Invalid:
            return False
