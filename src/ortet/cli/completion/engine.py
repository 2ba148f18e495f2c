"""What can stand next in a command line, for a shell that asks at every Tab: so hardly anything is
imported, nothing is made, and what goes wrong is no answer rather than a message in the prompt.

A shell is answered in lines: how to go on ("files" or "dirs" beside what follows; "open": without a
blank behind it), then each value, with a tab and a description for those that show one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ortet.cli import entry
from ortet.cli.completion.parser import (
    CompletionPosition,
    PartialCommandLine,
    VerbTable,
    split_words,
)

SHELLS = ("bash", "zsh", "fish")

_MAX_VALUES = 200
_MAX_COMMITS = 40
_OID_DIGITS = 12
_MAX_DESCRIPTION_CHARS = 70
_SHELL_SPECIAL_CHARS = frozenset(" \t\"'`$&|;<>()*?[]{}#~!\\")

Candidates = list[tuple[str, str]]


class Completion(NamedTuple):
    """`how`: see above."""

    how: str = ""
    values: Candidates = []


def main(words: Sequence[str]) -> None:
    """Answer a shell; the words are its name and what is typed so far, as it gives it."""
    try:
        said = complete_for_shell(words[0], words[1:])
    except Exception:  # a prompt is no place for it
        said = ""
    sys.stdout.write(said)
    sys.stdout.flush()


def complete_for_shell(shell: str, arguments: Sequence[str]) -> str:
    if shell != "bash":
        found = complete(list(arguments[1:]))
        rows = [f"{value}\t{_description(text)}" for value, text in found.values]
        return "\n".join([found.how, *rows]) + "\n"
    words, quote = split_words(arguments[0])
    found = complete(words[1:])
    # bash replaces what stands behind the last of these, not the whole word
    at = max((words[-1].rfind(mark) for mark in arguments[1]), default=-1) + 1
    rows = [value[at:] if quote else _quoted(value[at:]) for value, _ in found.values]
    return "\n".join([found.how, *rows]) + "\n"


def script(shell: str) -> str:
    """What a shell has to be told once."""
    place = os.path.join(os.path.dirname(__file__), "shells", f"ortet.{shell}")
    with open(place, encoding="utf-8") as file:
        return file.read()


def complete(words: Sequence[str]) -> Completion:
    """What can stand for the last of these words, behind the others."""
    line = PartialCommandLine(VerbTable(), words)
    place, current = line.position(), words[-1]
    if place.value:
        return _complete_value(place, line, current[len(place.before) :])
    if place.options:
        return _matching(place.options, current)
    if place.verbs:
        return _matching(place.verbs, current)
    return _complete_value(place, line, current)


def _matching(values: Iterable[tuple[str, str]], start: str, before: str = "") -> Completion:
    found = [(before + value, text) for value, text in values if value.startswith(start)]
    return Completion("", found)


def _complete_value(
    position: CompletionPosition, line: PartialCommandLine, start: str
) -> Completion:
    kind, how, found = position.kind, "", Completion()
    if kind.startswith("choice:"):
        choices = [(value, "") for value in kind[7:].split("|")]
        return _matching(choices, start, position.before)
    kind, _, more = kind.partition("+")
    if "file" in (kind, more) or kind == "command":
        how = "files"
    elif kind == "dir":
        how = "dirs"
    if kind in _VALUES:
        found = _matching(_VALUES[kind](line), start, position.before)
    elif kind in _SESSION_KINDS:
        found = _matching(_session_values(kind, line), start, position.before)
    return Completion(how, found.values)


# values, from the catalog


def _store(line: PartialCommandLine) -> tuple[str, str]:
    """The store's directory, and the workspace of this place; "" where there is none."""
    said = entry.read_nearest_pointer(line.directory)
    at, named, workspace = said if said is not None else ("", "", "")
    url = os.environ.get("ORTET_URL", "").removeprefix("file://")
    if not url and named:
        url = os.path.join(at, named).removeprefix("file://")
    if not url:
        data = os.environ.get("XDG_DATA_HOME", "")
        home = os.environ.get("HOME", "")
        url = f"{data}/ortet" if data.startswith("/") else f"{home}/.local/share/ortet"
    return url, workspace


def _catalog_names(source: str, *kinds: str) -> Callable[[PartialCommandLine], Candidates]:
    """Values that a glance at the catalog shows: its heads, or keys of its rows."""

    def find(line: PartialCommandLine) -> Candidates:
        from ortet.backends.sqlite.peek import CatalogPeek

        glance = CatalogPeek(_store(line)[0])
        if source == "heads":
            return [one for kind in kinds for one in glance.heads(kind, _MAX_VALUES)]
        return [(key, "") for kind in kinds for key in glance.keys(kind, _MAX_VALUES)]

    return find


def _refs(line: PartialCommandLine) -> Candidates:
    """HEAD, branches, tags, and what was committed here last."""
    from ortet.backends.sqlite.peek import CatalogPeek

    store, workspace = _store(line)
    glance = CatalogPeek(store)
    branches = glance.heads("branch", _MAX_VALUES)
    here = line.option_value("--workspace") or workspace or (branches[0][0] if branches else "")
    commits = [(oid[:_OID_DIGITS], text) for oid, text in glance.commits(here, _MAX_COMMITS)]
    last = [("HEAD", commits[0][1])] if commits else []
    return [*last, *branches, *glance.heads("tag", _MAX_VALUES), *dict(commits).items()]


def _sessions(line: PartialCommandLine) -> Candidates:
    """By name, where that is enough to tell which."""
    keys = [key.partition("/") for key, _ in _catalog_names("keys", "session-name")(line)]
    names = [name for _, _, name in keys]
    return [
        (name, f"of {agent}") if names.count(name) == 1 else (f"{agent}/{name}", "")
        for agent, _, name in keys
    ]


def _agents(line: PartialCommandLine) -> Candidates:
    keys = _catalog_names("keys", "session-name")(line)
    return [(agent, "") for agent in dict.fromkeys(key.partition("/")[0] for key, _ in keys)]


def _secrets(line: PartialCommandLine) -> Candidates:
    return [one for one in _catalog_names("keys", "vault")(line) if "/" not in one[0]]


_VALUES: dict[str, Callable[[PartialCommandLine], Candidates]] = {
    "ref": _refs,
    "branch": _catalog_names("heads", "branch"),
    "tag": _catalog_names("heads", "tag"),
    "workspace": _catalog_names("keys", "workspace"),
    "session": _sessions,
    "agent": _agents,
    "secret": _secrets,
}

# values that only a hub knows

_SESSION_KINDS = ("fact", "artifact", "effect", "approval")


def _session_values(kind: str, line: PartialCommandLine) -> Candidates:
    """By the host agent, if it is there: it has loaded all; else here, which takes longer."""
    session = line.option_value("--session")
    where = ["-C", line.directory] if line.directory else []
    words = [*where, "values", kind, *(["-s", session] if session else [])]
    read, write = os.pipe()
    silent = os.open(os.devnull, os.O_RDWR)
    try:
        _run_by_agent(words, line, (silent, write, silent)) or _run_in_process(words, write)
    finally:
        os.close(write)
        os.close(silent)
    with os.fdopen(read, encoding="utf-8", errors="replace") as file:
        rows = [row.rstrip("\n").partition("\t") for row in file]
    return [(value, text) for value, _, text in rows if value]


def _run_by_agent(
    words: Sequence[str], line: PartialCommandLine, streams: tuple[int, int, int]
) -> bool:
    from ortet.cli.daemon import client

    store, workspace = _store(line)
    if entry.is_agent_off():
        return False
    try:
        client.run_command(store, workspace or "completion", words, streams=streams)
    except (client.NoDaemon, client.DaemonLost):
        return False
    return True


def _run_in_process(words: list[str], write: int) -> bool:
    from ortet.cli.main import run

    before = sys.stdout, sys.stderr
    with open(write, "w", encoding="utf-8", closefd=False) as out, open(os.devnull, "w") as silent:
        sys.stdout, sys.stderr = out, silent
        try:
            run(words)
        finally:
            sys.stdout, sys.stderr = before
    return True


def _description(text: str) -> str:
    line = text.partition("\n")[0]
    return "".join(char if char.isprintable() else " " for char in line[:_MAX_DESCRIPTION_CHARS])


def _quoted(value: str) -> str:
    return "".join(f"\\{char}" if char in _SHELL_SPECIAL_CHARS else char for char in value)
