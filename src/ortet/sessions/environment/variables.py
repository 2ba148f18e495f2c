"""Environment variables of a session's commands: what is recorded, and what is set for commands."""

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
        # user and home
        *("HOME", "USER", "LOGNAME", "SHELL", "MAIL", "HOSTNAME"),
        *("TMPDIR", "TMP", "TEMP"),
        # terminal and display
        *("TERM", "COLORTERM", "DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY", "TMUX", "STY"),
        # sockets and ids of one login or one service start
        *("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "GPG_AGENT_INFO", "GPG_TTY"),
        *("NOTIFY_SOCKET", "INVOCATION_ID", "JOURNAL_STREAM"),
    }
)
"""Variables that describe this process and its host.

They are recorded and compared, but never set for commands: on another host they would be wrong.
"""

_HOST_BOUND_PREFIXES = ("ORTET_", "SSH_", "TERM_", "TMUX_", "XDG_SESSION_", "LISTEN_")

_MAX_VARIABLES = 200
_MAX_VALUE_BYTES = 32 * 1024
_MAX_TOTAL_BYTES = 256 * 1024
"""Most bytes of one value, and of all values, in an event. Of more only a digest is recorded."""

_OLD_VALUE_LIMIT = 1000
r"""Length at which an earlier release cut values; it also wrote bytes that are no text as \xNN.

A value that looks cut or escaped is complete only if its digest matches.
"""

_ESCAPED = re.compile(r"\\x[89a-f][0-9a-f]")


class SessionVariables:
    """The variables that commands see.

    There are three layers, later ones first: changes by this process since the session was opened,
    recorded or restored; recorded variables; the environment of this process. The environment of
    the process itself is never changed.
    """

    def __init__(self, environ: Mapping[str, str], opening: Mapping[str, str]) -> None:
        self._environ, self._opening = environ, opening
        self._base = self._last_probe = dict(environ)
        self._restored_values: dict[
            str, str | None
        ] = {}  # values at the restored commit of variables that differ from the opening

    def copy(self) -> SessionVariables:
        """Return a copy for a fork, with the changes of its parent's process."""
        return copy(self)

    @property
    def changed(self) -> set[str]:
        """Return the variables that this process has changed."""
        return _differing(self._environ, self._base)

    def overrides(self, recorded: Mapping[str, Variable]) -> dict[str, str | None]:
        """Return what to change in this process's environment for commands. None unsets."""
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
        """Return all variables as commands see them."""
        seen = {**self._environ, **self.overrides(recorded)}
        return {name: value for name, value in seen.items() if value is not None}

    def record(self, recorded: Mapping[str, Variable]) -> dict[str, Variable]:
        """Return the variables to record now.

        Recorded variables stay, except those that this process changed. Variables that differ from
        the opening environment are added. A recorded variable stays even if it has its usual value
        here: on another host it may differ.
        """
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
        """Accept that the last probe is recorded: later changes count as new ones."""
        changed = _differing(self._last_probe, self._base)
        self._restored_values = {
            name: value for name, value in self._restored_values.items() if name not in changed
        }
        self._base = self._last_probe

    def mark_restored(self, recorded: Mapping[str, Variable] | None) -> None:
        """Accept that the session was restored to a commit with these recorded variables.

        A variable that is not recorded gets its value of the opening environment. Secrets always
        keep their present value. None means that nothing was recorded.
        """
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
    """Return the variables that differ, and those in `names`. Secrets become references."""
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
    """Return True if the recorded value is complete, so that it can be set again."""
    if variable.ref or "\0" in variable.value:
        return False
    if variable.digest:
        return variable.digest == _digest(variable.value)
    return not _is_doubtful(variable.value)


def _is_doubtful(value: str) -> bool:
    return len(value) == _OLD_VALUE_LIMIT or _ESCAPED.search(value) is not None


def _is_name(name: str) -> bool:
    """Return True for a valid name. A backslash marks the stored form of a name that is no text."""
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
    """Return text that can be stored: names and values of the system may be any bytes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
