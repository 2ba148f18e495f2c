"""A command line that is not finished: where it stands, by the list of verbs and options."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_LIST = "words.tsv"


class Option(NamedTuple):
    names: list[str]
    kind: str  # of its value; "" for none
    help: str


class Verb(NamedTuple):
    arguments: list[str]  # their kinds; with * any number
    help: str
    options: list[Option]


class Place(NamedTuple):
    """What can stand next: one of some options or verbs, or a value of some kind, which stands
    behind `before` in its word (as behind --option=)."""

    kind: str = ""
    before: str = ""
    value: bool = False  # of an option
    options: list[tuple[str, str]] = []
    verbs: list[tuple[str, str]] = []


class Table:
    """The list, by the path of each verb."""

    def __init__(self, file: str = os.path.join(os.path.dirname(__file__), _LIST)) -> None:
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
        known = self.options(path)
        return next((option for option in known if name in option.names), None)

    def options(self, path: str) -> list[Option]:
        return [*self.verbs[path].options, *(self.common if path else [])]

    def below(self, path: str) -> list[tuple[str, str]]:
        """Verbs of a group, and what they do."""
        start = f"{path} " if path else ""
        names = ((name, verb) for name, verb in self.verbs.items() if name.startswith(start))
        found = [(name[len(start) :], verb.help) for name, verb in names if name != path]
        return [(name, text) for name, text in found if name and " " not in name]


class Line:
    """The words behind the program's name; the last is the one to be completed."""

    def __init__(self, table: Table, words: Sequence[str]) -> None:
        self._table = table
        self._current = words[-1]
        self.path = ""
        self.directory = ""
        self._arguments = 0
        self._values: dict[str, str] = {}
        self._used: list[Option] = []
        self._wants: Option | None = None  # a value, which is the next word
        self._over = False  # with options: behind --
        self._foreign = False  # all that follows is another program's
        for word in words[:-1]:
            self._take(word)

    def named(self, option: str) -> str:
        """The value of an option, by one of its names; "" where it is not given."""
        return self._values.get(option, "")

    def place(self) -> Place:
        current = self._current
        if self._wants is not None:
            return Place(self._wants.kind, value=True)
        if self._foreign:
            return Place("command")
        if current.startswith("-") and not self._over:
            name, mark, _ = current.partition("=")
            option = self._table.option(self.path, name) if mark else None
            if option is not None and option.kind:
                return Place(option.kind, before=f"{name}=", value=True)
            return Place(options=list(self._open()))
        verbs = self._table.below(self.path)
        if verbs:
            return Place(verbs=[] if self._arguments else verbs)
        return Place(self._argument())

    def _open(self) -> Iterator[tuple[str, str]]:
        """Options that were not given yet."""
        for option in self._table.options(self.path):
            if option not in self._used or "may be repeated" in option.help:
                yield from ((name, option.help) for name in option.names)

    def _argument(self) -> str:
        kinds = self._table.verbs[self.path].arguments
        if kinds and (self._arguments >= len(kinds) and kinds[-1].endswith("*")):
            return kinds[-1].rstrip("*")
        return kinds[self._arguments].rstrip("*") if self._arguments < len(kinds) else ""

    def _take(self, word: str) -> None:
        if self._foreign:
            return
        if self._wants is not None:
            self._note(self._wants, word)
            self._wants = None
        elif word == "--" and not self._over:
            self._over = True
        elif word.startswith("-") and word != "-" and not self._over:
            self._take_option(word)
        elif f"{self.path} {word}".strip() in self._table.verbs:
            self.path = f"{self.path} {word}".strip()
        else:
            self._foreign = self._argument() == "command"
            self._arguments += 1

    def _take_option(self, word: str) -> None:
        name, mark, value = word.partition("=")
        if not word.startswith("--"):  # -n5, -qf
            name, value = word[:2], word[2:]
            mark = value
        option = self._table.option(self.path, name)
        if option is None:
            return
        self._used.append(option)
        if option.kind and mark:
            self._note(option, value)
        elif option.kind:
            self._wants = option
        elif value and not word.startswith("--"):
            self._take_option(f"-{value}")

    def _note(self, option: Option, value: str) -> None:
        if "-C" in option.names:
            self.directory = os.path.join(self.directory, value)
        for name in option.names:
            self._values[name] = value


def split(line: str) -> tuple[list[str], str]:
    """Words as a shell reads them, the last of which may be begun or empty; and the quote it is
    in."""
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
