"""The variables of a session's commands: what is recorded of them, and what is given back."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from copy import copy

from ortet.journal.environment import Variable
from ortet.machines.secrets.names import looks_secret

_VOLATILE_NAMES = frozenset({"_", "PWD", "OLDPWD", "SHLVL", "LINES", "COLUMNS", "PS1"})

_HOST_BOUND_NAMES = frozenset(
    {
        # who runs it, and where its own files are
        *("HOME", "USER", "LOGNAME", "SHELL", "MAIL", "HOSTNAME"),
        *("TMPDIR", "TMP", "TEMP"),
        # the terminal and the display before it
        *("TERM", "COLORTERM", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "TMUX", "STY"),
        # sockets and numbers of one login, or of one start of a service
        *("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "GPG_AGENT_INFO", "GPG_TTY"),
        *("NOTIFY_SOCKET", "INVOCATION_ID", "JOURNAL_STREAM"),
    }
)
"""They tell of this process and its host: on another they would be wrong, however they came about.
They are recorded and compared, never given back."""

_HOST_BOUND_PREFIXES = ("ORTET_", "SSH_", "TERM_", "TMUX_", "XDG_SESSION_", "LISTEN_")

_MAX_VARIABLES = 200
_MAX_VALUE_BYTES = 32 * 1024
_MAX_TOTAL_BYTES = 256 * 1024
"""Bytes of one value, and of all together, that an event holds; of more only a digest is kept."""

_OLD_VALUE_LIMIT = 1000
"""An earlier version cut values to so many characters, and wrote bytes that are no text as \\xNN.
What looks like that is whole only if its digest is beside it."""

_ESCAPED = re.compile(r"\\x[89a-f][0-9a-f]")


class SessionVariables:
    """What commands see: this process's environment, over it what is recorded, over that what this
    process changed since the session was opened, recorded or restored.

    The process's own environment is read and never written.
    """

    def __init__(self, environ: Mapping[str, str], opening: Mapping[str, str]) -> None:
        self._environ, self._opening = environ, opening
        self._base = self._last_probe = dict(environ)
        self._restored_values: dict[
            str, str | None
        ] = {}  # set since the opening, but not at that commit

    def copy(self) -> SessionVariables:
        """For a fork: what its parent's process changed was changed for it too."""
        return copy(self)

    @property
    def changed(self) -> set[str]:
        """Those that this process has made other than they were."""
        return _differing(self._environ, self._base)

    def overrides(self, recorded: Mapping[str, Variable]) -> dict[str, str | None]:
        """What to lay over this process's environment; None unsets."""
        now = dict(self._environ)
        changed, found = _differing(now, self._base), dict(self._restored_values)
        for name, variable in recorded.items():
            if (
                _is_name(name)
                and not _is_bound(name)
                and (variable.unset or _is_complete(variable))
            ):
                found[name] = None if variable.unset else variable.value
        return {n: v for n, v in found.items() if n not in changed and now.get(n) != v}

    def visible(self, recorded: Mapping[str, Variable]) -> dict[str, str]:
        """All of them, as commands see them."""
        seen = {**self._environ, **self.overrides(recorded)}
        return {name: value for name, value in seen.items() if value is not None}

    def record(self, recorded: Mapping[str, Variable]) -> dict[str, Variable]:
        """What is to be recorded now: as before, but for what this process changed, and what else
        differs from the opening environment. One that is recorded stays so: what is usual here
        need not be elsewhere."""
        self._last_probe, changed = dict(self._environ), self.changed
        seen = self.visible(recorded)
        kept = {name: one for name, one in recorded.items() if name not in changed}
        room = _MAX_TOTAL_BYTES - sum(len(one.value.encode()) for one in kept.values())
        now = changed_variables(seen, self._opening, changed & recorded.keys())
        for name, one in now.items():
            if name not in kept and len(kept) < _MAX_VARIABLES:
                size = len(one.value.encode())
                kept[name] = one if size <= room else Variable(digest=_digest(one.value))
                room -= size if size <= room else 0
        return dict(sorted(kept.items()))

    def mark_recorded(self) -> None:
        """It was: what this process has changed since is another change."""
        changed = _differing(self._last_probe, self._base)
        self._restored_values = {
            name: value for name, value in self._restored_values.items() if name not in changed
        }
        self._base = self._last_probe

    def mark_restored(self, recorded: Mapping[str, Variable] | None) -> None:
        """The session went to where this was recorded; None: nothing was. What that does not name
        was as at the opening, and is so again; a secret is always the present one."""
        self._base, self._restored_values = dict(self._environ), {}
        if recorded is not None:
            self._restored_values = {
                name: self._opening.get(name)
                for name in _differing(self._environ, self._opening) - recorded.keys()
                if not _is_bound(name) and not looks_secret(name, self._environ.get(name, ""))
            }


def changed_variables(
    environ: Mapping[str, str], opening: Mapping[str, str], names: Iterable[str] = ()
) -> dict[str, Variable]:
    """Those that differ, and these; a secret becomes a reference before anybody can store it."""
    chosen = sorted(_differing(environ, opening) | set(names))[:_MAX_VARIABLES]
    return {_storable(name): _variable(name, environ.get(name)) for name in chosen}


def _differing(environ: Mapping[str, str], other: Mapping[str, str]) -> set[str]:
    return {
        name
        for name in {*environ, *other}
        if environ.get(name) != other.get(name)
        and name not in _VOLATILE_NAMES
        and not name.startswith("ORTET_")
    }


def _variable(name: str, value: str | None) -> Variable:
    if value is None:
        return Variable(unset=True)
    if looks_secret(name, value):
        return Variable(ref=f"env:{_storable(name)}")
    if (
        len(value.encode("utf-8", "surrogateescape")) > _MAX_VALUE_BYTES
        or _storable(value) != value
    ):
        return Variable(digest=_digest(value))
    return Variable(value, digest=_digest(value) if _is_doubtful(value) else "")


def _is_complete(variable: Variable) -> bool:
    """Whether it can be given back as it was."""
    if variable.ref or "\0" in variable.value:
        return False
    if variable.digest:
        return variable.digest == _digest(variable.value)
    return not _is_doubtful(variable.value)


def _is_doubtful(value: str) -> bool:
    return len(value) == _OLD_VALUE_LIMIT or _ESCAPED.search(value) is not None


def _is_name(name: str) -> bool:
    """A backslash is in the stored form of names that are no text."""
    return bool(name) and not any(character in name for character in "=\0\\")


def _is_bound(name: str) -> bool:
    return (
        name in _VOLATILE_NAMES
        or name in _HOST_BOUND_NAMES
        or name.startswith(_HOST_BOUND_PREFIXES)
    )


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()


def _storable(text: str) -> str:
    """As text that can be stored: names and values of the system may be any bytes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
