"""Result types of a restore, and the names of the parts that it restores."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from ortet.errors import Invalid
from ortet.journal.environment import EnvironmentDifference
from ortet.journal.state.records import Collaboration, Effect
from ortet.machines.base import Report
from ortet.vault.vault import format_expiry

_SHOWN_DIFFERENCES = 5

RestoreParts = frozenset[str]
ALL_PARTS: RestoreParts = frozenset({"files", "mind", "processes"})
MACHINE_PARTS = frozenset({"files", "processes"})


class RestoreResult(msgspec.Struct, frozen=True):
    """The result of a restore.

    Attributes:
        to: The restored commit, in hex.
        files: What was written, removed and lost.
        deeds: Effects after that commit, which stay done.
        collaborations: Pull requests and the like that these effects made.
        environment: Differences between the environment now and at the commit.
        secrets: Secrets that the commit refers to and that are not available here now.
    """

    to: str
    files: Report
    deeds: list[Effect]
    collaborations: list[Collaboration] = []
    environment: list[EnvironmentDifference] = []
    secrets: list[UnavailableSecret] = []

    def __str__(self) -> str:
        text = f"at {self.to[:12]}"
        if self.files.started:
            text += f"; running: {', '.join(self.files.started)}"
        for loss in self.files.losses:
            text += f"; not back: {loss.path or loss.what} ({loss.why})"
        if self.deeds:
            count = len(self.deeds)
            names = ", ".join(sorted({effect.name for effect in self.deeds}))
            happened = (
                "1 effect happened later and stays"
                if count == 1
                else (f"{count} effects happened later and stay")
            )
            text += f"; {happened} done: {names}"
        if self.collaborations:
            text += f"; others still see {'; '.join(map(_shown, self.collaborations))}"
        if self.secrets:
            text += f"; {'; '.join(map(str, self.secrets))}"
        if self.environment:
            more = len(self.environment) - _SHOWN_DIFFERENCES
            text += f"; around it: {'; '.join(map(str, self.environment[:_SHOWN_DIFFERENCES]))}"
            text += f" and {more} more" if more > 0 else ""
        return text


class UnavailableSecret(msgspec.Struct, frozen=True):
    """A secret that a commit needs and that this host cannot provide.

    `state` is "missing", "expired" (at `expired`, ns since 1970), or "no_key" if it was sealed with
    another host's key. `used` says by what: "run", "token github", "variable API_KEY".
    """

    name: str
    state: str
    used: list[str]
    expired: int = 0

    def __str__(self) -> str:
        why = {
            "expired": f"expired at {format_expiry(self.expired)}",
            "no_key": "was sealed with a key that is not here",
        }.get(self.state, "is missing")
        if all(one.startswith("variable ") for one in self.used):
            return f"secret {self.name} {why}: set that variable, for {', '.join(self.used)}"
        again = f"`ortet secret set {self.name}`"
        return f"secret {self.name} {why}: set it again with {again}, for {', '.join(self.used)}"


def _shown(one: Collaboration) -> str:
    kind = f"{one.kind} " if one.kind else ""
    link = f", {one.link}" if one.link else ""
    return f"{kind}{one.name!r} ({one.status}{link})"


def check_parts(only: Collection[str] | None) -> frozenset[str]:
    given: Collection[str] = (
        [only] if isinstance(only, str) else ALL_PARTS if only is None else only
    )
    are_names = isinstance(given, Collection) and all(isinstance(part, str) for part in given)
    parts = frozenset(given) if are_names else frozenset()
    if not parts or not parts <= ALL_PARTS:
        raise Invalid("bad_parts", f"only={only!r}: give some of 'files', 'mind', 'processes'")
    return parts
