"""Parses an unfinished command line, using the list of commands and options."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_WORD_LIST_NAME = "words.tsv"


class Option(NamedTuple):
    """An option of a command."""

    names: list[str]
    kind: str  # kind of its value; "" for none
    help: str


class Verb(NamedTuple):
    """A command or a group of commands."""

    arguments: list[str]  # their kinds; * means any number
    help: str
    options: list[Option]


class CompletionPosition(NamedTuple):
    """The candidates at a position: options, commands, or a value of some kind."""

    kind: str = ""
    before: str = ""
    value: bool = False  # True for a value of an option
    options: list[tuple[str, str]] = []
    verbs: list[tuple[str, str]] = []


class VerbTable:
    """The list of commands, by the path of each command."""

    def __init__(
        self, file: str = os.path.join(os.path.dirname(__file__), _WORD_LIST_NAME)
    ) -> None:
        self.verbs: dict[str, Verb] = {}
        self.common: list[Option] = []
        with open(file, encoding="utf-8") as lines:
            for line in lines:
                what, path, *rest = line.rstrip("\n").split("\t")
                if what == "verb":
                    self.verbs[path] = Verb(rest[0].split(), rest[1], [])
                    continue
                option = Option(rest[0].split(","), rest[1], rest[2])
                (self.common if path == "*" else self.verbs[path].options).append(option)

    def option(self, path: str, name: str) -> Option | None:
        """Return the option of a command by one of its names, or None."""
        known = self.options(path)
        return next((option for option in known if name in option.names), None)

    def options(self, path: str) -> list[Option]:
        """Return the options of a command, including the common ones."""
        return [*self.verbs[path].options, *(self.common if path else [])]

    def subcommands(self, path: str) -> list[tuple[str, str]]:
        """Return the commands of a group and their help."""
        start = f"{path} " if path else ""
        names = ((name, verb) for name, verb in self.verbs.items() if name.startswith(start))
        rest = [(name[len(start) :], verb.help) for name, verb in names if name != path]
        return [(name, text) for name, text in rest if name and " " not in name]


class PartialCommandLine:
    """The words after the program's name. The last one is completed."""

    def __init__(self, table: VerbTable, words: Sequence[str]) -> None:
        self._table = table
        self._current = words[-1]
        self.path = ""
        self.directory = ""
        self._argument_count = 0
        self._values: dict[str, str] = {}
        self._used_options: list[Option] = []
        self._awaiting_value: Option | None = None  # the option whose value is the next word
        self._options_ended = False  # True after --
        self._in_foreign_command = False  # True if the rest is the command line of another program
        for word in words[:-1]:
            self._consume(word)

    def option_value(self, option: str) -> str:
        """Return the value of an option, by one of its names, or ""."""
        return self._values.get(option, "")

    def position(self) -> CompletionPosition:
        """Return what can come next."""
        current = self._current
        if self._awaiting_value is not None:
            return CompletionPosition(self._awaiting_value.kind, value=True)
        if self._in_foreign_command:
            return CompletionPosition("command")
        if current.startswith("-") and not self._options_ended:
            name, mark, _ = current.partition("=")
            option = self._table.option(self.path, name) if mark else None
            if option is not None and option.kind:
                return CompletionPosition(option.kind, before=f"{name}=", value=True)
            return CompletionPosition(options=list(self._unused_options()))
        verbs = self._table.subcommands(self.path)
        if verbs:
            return CompletionPosition(verbs=[] if self._argument_count else verbs)
        return CompletionPosition(self._argument_kind())

    def _unused_options(self) -> Iterator[tuple[str, str]]:
        """Yield options that can still be given."""
        for option in self._table.options(self.path):
            if option not in self._used_options or "may be repeated" in option.help:
                yield from ((name, option.help) for name in option.names)

    def _argument_kind(self) -> str:
        kinds = self._table.verbs[self.path].arguments
        if kinds and (self._argument_count >= len(kinds) and kinds[-1].endswith("*")):
            return kinds[-1].rstrip("*")
        return kinds[self._argument_count].rstrip("*") if self._argument_count < len(kinds) else ""

    def _consume(self, word: str) -> None:
        if self._in_foreign_command:
            return
        if self._awaiting_value is not None:
            self._set_option(self._awaiting_value, word)
            self._awaiting_value = None
        elif word == "--" and not self._options_ended:
            self._options_ended = True
        elif word.startswith("-") and word != "-" and not self._options_ended:
            self._consume_option(word)
        elif f"{self.path} {word}".strip() in self._table.verbs:
            self.path = f"{self.path} {word}".strip()
        else:
            self._in_foreign_command = self._argument_kind() == "command"
            self._argument_count += 1

    def _consume_option(self, word: str) -> None:
        name, mark, value = word.partition("=")
        if not word.startswith("--"):  # -n5, -qf
            name, value = word[:2], word[2:]
            mark = value
        option = self._table.option(self.path, name)
        if option is None:
            return
        self._used_options.append(option)
        if option.kind and mark:
            self._set_option(option, value)
        elif option.kind:
            self._awaiting_value = option
        elif value and not word.startswith("--"):
            self._consume_option(f"-{value}")

    def _set_option(self, option: Option, value: str) -> None:
        if "-C" in option.names:
            self.directory = os.path.join(self.directory, value)
        for name in option.names:
            self._values[name] = value


def split_words(line: str) -> tuple[list[str], str]:
    """Split a line as a shell does. The last word may be incomplete or empty.

    Return the words, and the quote that the last word is in.
    """
    words, word, quote, begun = list[str](), "", "", False
    chars = iter(line)
    for char in chars:
        if quote:
            if char == quote:
                quote = ""
            elif char == "\\" and quote == '"':
                word += next(chars, "")
            else:
                word += char
        elif char in "\"'":
            quote, begun = char, True
        elif char == "\\":
            word, begun = word + next(chars, ""), True
        elif char.isspace():
            if begun:
                words.append(word)
            word, begun = "", False
        else:
            word, begun = word + char, True
    return [*words, word], quote
