"""The environment of a workspace: packages, variables, hosts and git state.

A restore of files does not restore the environment. This module holds its record, and the
comparison of two records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from ortet._util.structs import thread_safe_struct
from ortet.journal.events import Event

_MAX_VARIABLE_CHARS = 1000
"""Largest number of characters of a variable that are shown."""


class PythonPackages(msgspec.Struct, frozen=True):
    """Python version, and installed distributions by normalised name."""

    version: str = ""
    packages: dict[str, str] = {}


class DebianPackages(msgspec.Struct, frozen=True):
    """Digest of the dpkg status file and the number of packages in it. The list is too long."""

    digest: str
    count: int


class Variable(msgspec.Struct, frozen=True, omit_defaults=True):
    """An environment variable that differs from the environment when the hub was opened.

    A secret is recorded only as `ref`, its name. A value that is too long or not text is recorded
    only as `digest`. `unset` means that the variable no longer exists.
    """

    value: str = ""
    ref: str = ""
    unset: bool = False
    digest: str = ""

    def __str__(self) -> str:
        if self.unset or self.ref:
            return self.ref or "not set"
        if self.digest and not self.value:
            return f"not kept ({self.digest[:12]})"
        cut = f"… ({len(self.value)} characters)" if len(self.value) > _MAX_VARIABLE_CHARS else ""
        return repr(self.value[:_MAX_VARIABLE_CHARS]) + cut

    def matches(self, other: Variable | None) -> bool:
        """Return True if both have the same value, as far as it is recorded.

        If a value is recorded, its digest is not compared.
        """
        if other is None or not self.value:
            return self == other
        return self.value == other.value


class Git(msgspec.Struct, frozen=True):
    """State of the git repository.

    `dirty` is the number of changed paths, or -1 if it is unknown. `changed` lists the first of
    them, each with its two status letters.
    """

    head: str = ""
    branch: str = ""  # "" if HEAD is detached
    dirty: int = -1
    changed: list[str] = []
    stashes: int = 0


class Environment(msgspec.Struct, frozen=True):
    """Record of an environment. A missing part is None or empty.

    Attributes:
        python: Packages of the virtual environment.
        npm: Digest of the lock file.
        debian: Digest and number of the installed packages.
        variables: Variables that differ from those of the opening process.
        hosts: Lines of the hosts file that the distribution does not install.
        resolver: Nameserver and search lines.
        git: State of the repository.
    """

    python: PythonPackages | None = None
    npm: str = ""
    debian: DebianPackages | None = None
    variables: dict[str, Variable] = {}
    hosts: list[str] = []
    resolver: list[str] = []
    git: Git | None = None


class EnvironmentDifference(msgspec.Struct, frozen=True):
    """One difference between two environments.

    Attributes:
        part: Part of the environment, for example "variables".
        name: Name of the value.
        then: Value in the older environment; "" if it did not exist.
        now: Value in the newer environment; "" if it does not exist.
    """

    part: str
    name: str
    then: str
    now: str

    def __str__(self) -> str:
        what = f"{self.part} {self.name}" if self.name else self.part
        return f"{what}: {self.then or 'nothing'} then, {self.now or 'nothing'} now"


EMPTY_ENVIRONMENT = Environment()
ENVIRONMENT_PARTS = Environment.__struct_fields__


def changed_parts(old: Environment | None, new: Environment) -> dict[str, Any]:
    """Return the changed parts as event data; all parts if `old` is None."""
    return {
        part: msgspec.to_builtins(getattr(new, part))
        for part in ENVIRONMENT_PARTS
        if old is None or getattr(old, part) != getattr(new, part)
    }


def environment_from_events(
    parts: Mapping[str, int], events: Callable[[int, int], Iterable[Event]]
) -> Environment | None:
    """Build the environment from the events that last recorded each part.

    Args:
        parts: Part name -> number of the event that recorded it last.
        events: Function that returns the events with after < seq <= upto.

    Returns:
        The environment, or None if `parts` is empty.
    """
    found: dict[str, Any] = {}
    for seq in sorted(set(parts.values())):
        for event in events(seq - 1, seq):
            told = event.data.get("parts", {})
            found |= {part: told[part] for part, at in parts.items() if at == seq and part in told}
    return msgspec.convert(found, thread_safe_struct(Environment)) if parts else None


def differences(before: Environment, after: Environment) -> list[EnvironmentDifference]:
    """Return the differences from `before` to `after`, in the order of the parts."""
    return list(_differences(before, after))


def _differences(before: Environment, after: Environment) -> Iterator[EnvironmentDifference]:
    old, new = before.python or PythonPackages(), after.python or PythonPackages()
    if old.version != new.version:
        yield EnvironmentDifference("python", "", old.version, new.version)
    yield from _pairs("package", old.packages, new.packages)
    if before.npm != after.npm:
        yield EnvironmentDifference("npm lock", "", before.npm[:12], after.npm[:12])
    if before.debian != after.debian:
        yield EnvironmentDifference(
            "debian packages", "", _debian(before.debian), _debian(after.debian)
        )
    yield from _variables(before.variables, after.variables)
    yield from _pairs("hosts", _lines(before.hosts), _lines(after.hosts))
    yield from _pairs("resolver", _lines(before.resolver), _lines(after.resolver))
    if before.git != after.git:
        yield from _git(before.git or Git(dirty=0), after.git or Git(dirty=0))


def _pairs(
    part: str, old: Mapping[str, str], new: Mapping[str, str]
) -> Iterator[EnvironmentDifference]:
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            yield EnvironmentDifference(part, name, old.get(name, ""), new.get(name, ""))


def _variables(
    old: Mapping[str, Variable], new: Mapping[str, Variable]
) -> Iterator[EnvironmentDifference]:
    for name in sorted({*old, *new}):
        before, after = old.get(name), new.get(name)
        if before is None or not before.matches(after):
            yield EnvironmentDifference("variable", name, _text(before), _text(after))


def _text(variable: Variable | None) -> str:
    return "" if variable is None else str(variable)


def _git(old: Git, new: Git) -> Iterator[EnvironmentDifference]:
    if old.head != new.head:
        yield EnvironmentDifference("git", "HEAD", old.head[:12], new.head[:12])
    if old.branch != new.branch:
        yield EnvironmentDifference("git", "branch", old.branch, new.branch)
    if (old.dirty, old.changed) != (new.dirty, new.changed):
        yield EnvironmentDifference("git", "changed files", _dirty(old), _dirty(new))
    if old.stashes != new.stashes:
        yield EnvironmentDifference("git", "stashes", str(old.stashes), str(new.stashes))


def _dirty(git: Git) -> str:
    if git.dirty < 0:
        return "not known"
    more = ", …" if git.dirty > 3 else ""
    paths = ", ".join(line[3:] for line in git.changed[:3])
    return f"{git.dirty} ({paths}{more})" if git.dirty else "0"


def _variable_texts(environment: Environment) -> dict[str, str]:
    return {name: str(variable) for name, variable in environment.variables.items()}


def _lines(lines: Iterable[str]) -> dict[str, str]:
    return dict.fromkeys(lines, "there")


def _debian(debian: DebianPackages | None) -> str:
    return f"{debian.count} ({debian.digest[:12]})" if debian else ""


def environment_lines(
    initial: Environment | None, current: Environment | None
) -> list[tuple[str, Any]]:
    """Return the lines about the environment for a briefing, each as text and as data.

    They show the repository, packages that were installed since the start, and overridden values.
    """
    if current is None:
        return []
    lines: list[tuple[str, Any]] = []
    if current.git is not None:
        branch = current.git.branch or "detached"
        line = (
            f"git: {branch} at {current.git.head[:12] or 'no commit'}, changed: "
            f"{_dirty(current.git)}"
        )
        line += f", {current.git.stashes} stashed" if current.git.stashes else ""
        lines.append((line, {"git": msgspec.to_builtins(current.git)}))
    earlier = initial or current
    kinds = ("package", "python", "npm lock", "debian packages")
    for difference in differences(earlier, current):
        if difference.part in kinds:
            lines.append((str(difference), msgspec.to_builtins(difference)))
    for name, value in _variable_texts(current).items():
        lines.append((f"variable {name}: {value}", {"variable": name, "value": value}))
    lines += [(f"hosts: {line}", {"hosts": line}) for line in current.hosts]
    if current.resolver and initial is not None and initial.resolver != current.resolver:
        lines.append((f"resolver: {'; '.join(current.resolver)}", {"resolver": current.resolver}))
    return lines
