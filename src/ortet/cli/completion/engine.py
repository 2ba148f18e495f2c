"""Computes completions for a shell.

It runs at every Tab: it imports almost nothing, creates nothing, and prints no error. A failure
gives no candidates.

The answer is lines. The first line says how to continue: "files" or "dirs" adds those to the values
that follow. The scripts also know "open" (no space after a value), which is not sent at present.
Each other line is a value, with a tab and a description for shells that show one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ortet.cli.completion.parser import (
    CompletionPosition,
    PartialCommandLine,
    VerbTable,
    split_words,
)
from ortet.cli.daemon import client, fast_path

SHELLS = ("bash", "zsh", "fish")

_MAX_VALUES = 200
_MAX_COMMITS = 40
_OID_DIGITS = 12
_MAX_DESCRIPTION_CHARS = 70
_SHELL_SPECIAL_CHARS = frozenset(" \t\"'`$&|;<>()*?[]{}#~!\\")

Candidates = list[tuple[str, str]]


class Completion(NamedTuple):
    """The first line of the answer (`how`, see above), and the candidates."""

    how: str = ""
    values: Candidates = []


def main(words: Sequence[str]) -> None:
    """Answer a shell.

    `words` are the shell's name and the words typed so far, as that shell gives them.
    """
    try:
        answer = complete_for_shell(words[0], words[1:])
    except Exception:  # never print an error into a prompt
        answer = ""
    sys.stdout.write(answer)
    sys.stdout.flush()


def complete_for_shell(shell: str, arguments: Sequence[str]) -> str:
    """Return the answer for a shell. `arguments` depend on the shell."""
    if shell != "bash":
        completion = complete(list(arguments[1:]))
        rows = [f"{value}\t{_description(text)}" for value, text in completion.values]
        return "\n".join([completion.how, *rows]) + "\n"
    words, quote = split_words(arguments[0])
    completion = complete(words[1:])
    # bash replaces only the text after the last of these characters, not the whole word.
    start = max((words[-1].rfind(mark) for mark in arguments[1]), default=-1) + 1
    rows = [value[start:] if quote else _quoted(value[start:]) for value, _ in completion.values]
    return "\n".join([completion.how, *rows]) + "\n"


def script(shell: str) -> str:
    """Return the script that sets up completion in a shell."""
    path = os.path.join(os.path.dirname(__file__), "shells", f"ortet.{shell}")
    with open(path, encoding="utf-8") as file:
        return file.read()


def complete(words: Sequence[str]) -> Completion:
    """Return what can replace the last of these words."""
    line = PartialCommandLine(VerbTable(), words)
    position, current = line.position(), words[-1]
    if position.value:
        return _complete_value(position, line, current[len(position.before) :])
    if position.options:
        return _matching(position.options, current)
    if position.verbs:
        return _matching(position.verbs, current)
    return _complete_value(position, line, current)


def _matching(values: Iterable[tuple[str, str]], start: str, before: str = "") -> Completion:
    matching = [(before + value, text) for value, text in values if value.startswith(start)]
    return Completion("", matching)


def _complete_value(
    position: CompletionPosition, line: PartialCommandLine, start: str
) -> Completion:
    kind, how, completion = position.kind, "", Completion()
    if kind.startswith("choice:"):
        choices = [(value, "") for value in kind[7:].split("|")]
        return _matching(choices, start, position.before)
    kind, _, more = kind.partition("+")
    if "file" in (kind, more) or kind == "command":
        how = "files"
    elif kind == "dir":
        how = "dirs"
    if kind in _VALUES:
        completion = _matching(_VALUES[kind](line), start, position.before)
    elif kind in _SESSION_KINDS:
        completion = _matching(_session_values(kind, line), start, position.before)
    return Completion(how, completion.values)


# values, from the catalog


def _store(line: PartialCommandLine) -> tuple[str, str]:
    """Return the store's directory and the workspace of this directory, or ""."""
    pointer = fast_path.read_nearest_pointer(line.directory)
    directory, store, workspace = pointer if pointer is not None else ("", "", "")
    url = os.environ.get("ORTET_URL", "").removeprefix("file://")
    if not url and store:
        url = os.path.join(directory, store).removeprefix("file://")
    if not url:
        data = os.environ.get("XDG_DATA_HOME", "")
        home = os.environ.get("HOME", "")
        url = f"{data}/ortet" if data.startswith("/") else f"{home}/.local/share/ortet"
    return url, workspace


def _catalog_names(source: str, *kinds: str) -> Callable[[PartialCommandLine], Candidates]:
    """Return a function that lists heads, or keys of rows, from the catalog."""

    def find(line: PartialCommandLine) -> Candidates:
        from ortet.backends.sqlite.peek import CatalogPeek

        glance = CatalogPeek(_store(line)[0])
        if source == "heads":
            return [one for kind in kinds for one in glance.heads(kind, _MAX_VALUES)]
        return [(key, "") for kind in kinds for key in glance.keys(kind, _MAX_VALUES)]

    return find


def _refs(line: PartialCommandLine) -> Candidates:
    """Return HEAD, branches, tags, and the latest commits here."""
    from ortet.backends.sqlite.peek import CatalogPeek

    store, workspace = _store(line)
    glance = CatalogPeek(store)
    branches = glance.heads("branch", _MAX_VALUES)
    branch = line.option_value("--workspace") or workspace or (branches[0][0] if branches else "")
    commits = [(oid[:_OID_DIGITS], text) for oid, text in glance.commits(branch, _MAX_COMMITS)]
    last = [("HEAD", commits[0][1])] if commits else []
    return [*last, *branches, *glance.heads("tag", _MAX_VALUES), *dict(commits).items()]


def _sessions(line: PartialCommandLine) -> Candidates:
    """Return session names, with the agent if a name is not unique."""
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
    """Get values from the host agent, which has everything loaded.

    Without it, load the commands here.
    """
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
    store, workspace = _store(line)
    if fast_path.is_agent_off():
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
