"""Profiles: named sets of policies for a kind of session. docs/profiles.md lists their costs."""

from __future__ import annotations

import os
from pathlib import PurePosixPath
from typing import Any, Literal, get_args

import msgspec
from msgspec.structs import replace

from ortet._util.validation import PATH, require
from ortet.errors import Invalid
from ortet.sessions.writing.auto_commit import CommitPolicy, parse
from ortet.sessions.writing.event_writer import Durability

_DAY = 24 * 3600.0


ProbePolicy = Literal["asked", "ends", "commit"]
"""When a session probes the environment of its workspace.

"asked": only by `s.environment()`. "ends": also when it is opened and released. "commit": also at
each commit.
"""


def check_directory(directory: str | os.PathLike[str], *, inside: bool) -> str:
    """Return the directory. With `inside` it must lie in the workspace."""
    require(PATH._replace(kind="bad_directory"), directory=directory)
    directory = os.fspath(directory)
    if inside and (os.path.isabs(directory) or ".." in PurePosixPath(directory).parts):
        raise Invalid(
            "bad_directory", f"{directory}: give a directory inside the workspace, as 'handover'"
        )
    return directory


class Profile(msgspec.Struct, frozen=True):
    """The policies of a session. Options given at open override them."""

    name: str = ""
    durability: Durability = "event"
    commit: CommitPolicy = CommitPolicy()
    note_ttl: float | None = None  # default lifetime of a note, in seconds
    briefing: bool = False  # write handover files at each commit
    handover: str = "handover"  # directory of these files in the workspace
    environment: ProbePolicy = "ends"
    audit: bool = False  # verify the event chain when the session is finished
    hold: bool = False  # retention removes nothing of the session


class OpenOptions(msgspec.Struct, frozen=True):
    """Options given when a session is opened. None takes the value of the profile."""

    durability: Durability | None = None
    commit: Any = None
    profile: str | None = None  # None: the profile that it has
    parent: str = ""  # id of the session that it works for
    replay: bool | str = False  # True, or "live"
    handover: str | None = None  # "": no handover files
    environment: str | None = None
    # shared scopes in addition to its agent's; None: unchanged
    scopes: tuple[str, ...] | None = None
    reopen: bool = False  # open a session that was finished
    wait: float = 0.0  # seconds to wait for a session that another handle has open

    def resolve_profile(self, profile_name: str) -> Profile:
        """Return the policies of a session with the profile `profile_name` and these options.

        Raises:
            Invalid: an option or the profile is not known.
        """
        if not isinstance(self.replay, bool) and self.replay != "live":
            raise Invalid("bad_replay", f"replay={self.replay!r}: give True, False or 'live'")
        found = find_profile(profile_name if self.profile is None else self.profile)
        if self.commit is not None:
            found = replace(found, commit=parse(self.commit))
        if self.durability is not None:
            if self.durability not in get_args(Durability):
                raise Invalid(
                    "bad_policy",
                    f"durability={self.durability!r}: give one of {get_args(Durability)}",
                )
            found = replace(found, durability=self.durability)
        if self.handover is not None:
            place = check_directory(self.handover, inside=True) if self.handover else ""
            found = replace(found, briefing=bool(place), handover=place or found.handover)
        if self.environment is not None:
            if self.environment not in get_args(ProbePolicy):
                raise Invalid(
                    "bad_policy",
                    f"environment={self.environment!r}: give one of {get_args(ProbePolicy)}",
                )
            found = replace(found, environment=self.environment)
        return found


DEFAULT_OPTIONS = OpenOptions()

_PROFILES = (
    Profile("chatbot", durability="commit"),
    Profile("assistant", durability="group", commit=CommitPolicy("milestone"), note_ttl=_DAY),
    Profile("worker", commit=CommitPolicy("cost", 3.0), briefing=True, environment="commit"),
    Profile("enterprise", commit=CommitPolicy("action"), audit=True, hold=True),
)


def find_profile(name: str) -> Profile:
    """Return the profile of this name. "" is the default: every event durable, no automatic commit.

    Raises:
        Invalid: "bad_profile" if there is none.
    """
    if not name:
        return Profile()
    for profile in _PROFILES:
        if profile.name == name:
            return profile
    names = ", ".join(profile.name for profile in _PROFILES)
    raise Invalid("bad_profile", f"profile={name!r}: give one of {names}")
