"""Generates the list of commands and options that completion reads.

Loading all commands takes too long for a Tab, so the list is a file. Write it again with
`python -m ortet.cli.completion.word_list`. A test fails if it is not up to date.

Each line has fields between tabs. A command: "verb", its path, the kinds of its arguments, its
help. An option: "option", the command's path ("*": all commands), its names, the kind of its value
("" for none), its help.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from ortet.cli.call import common_options
from ortet.cli.main import cli

WORD_LIST_FILE = Path(__file__).with_name("words.tsv")

_BY_METAVAR = {
    "DIR": "dir",
    "[DIR]": "dir",
    "FILE": "file",
    "REF": "ref",
    "REF... FILE": "ref+file",
    "SESSION": "session",
    "[SESSION]": "session",
    "[SESSION]...": "session",
    "[BRANCH]": "branch",
    "FACT": "fact",
}
_BY_NAME = {
    "session": "session",
    "ref": "ref",
    "old": "ref",
    "new": "ref",
    "other": "ref",
    "fork_name": "workspace",
    "names": "workspace",
    "machine": "workspace",
    "agent": "agent",
    "fact": "fact",
    "effect": "effect",
    "approval": "approval",
    "secret": "secret",
    "command": "command",
    "left": "session",
    "right": "session",
    "path": "file",
    "paths": "file",
    "file": "file",
    "source": "file",
    "target": "file",
}
_BY_COMMAND_AND_NAME = {
    "branch delete": "branch",
    "branch rename": "branch",
    "tag delete": "tag",
    "tag workspace": "workspace",
    "session rm name": "session",
    "turn name": "session",
    "artifact get name": "artifact",
    "artifact show name": "artifact",
    "secret rm name": "secret",
    "vault rm name": "secret",
    "token set name": "secret",
    "carry source": "file",
    "run cwd": "dir",
}
_COMMON = {"json", "quiet", "help", "pages", "color"}


def word_list_lines() -> Iterator[str]:
    """Yield the lines of the up-to-date list."""

    @click.command
    @common_options
    def any_verb() -> None: ...

    ctx = click.Context(any_verb)
    for param in any_verb.get_params(ctx):
        if isinstance(param, click.Option) and not param.hidden:
            yield _option("*", param)
    yield from _walk(cli, "", click.Context(cli, info_name="ortet"))


def _walk(command: click.Command, path: str, ctx: click.Context) -> Iterator[str]:
    params = [param for param in command.params if not getattr(param, "hidden", False)]
    arguments = [
        _argument_kind(path, param) for param in params if isinstance(param, click.Argument)
    ]
    yield _line("verb", path, " ".join(arguments), command.get_short_help_str(70))
    for param in params:
        if isinstance(param, click.Option) and (param.name not in _COMMON or not path):
            yield _option(path, param)
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            sub = command.get_command(ctx, name)
            if sub is not None and not sub.hidden:
                yield from _walk(sub, f"{path} {name}".strip(), click.Context(sub, parent=ctx))


def _option(path: str, option: click.Option) -> str:
    kind = "" if option.is_flag or option.count else _kind(path, option)
    names = sorted([*option.opts, *option.secondary_opts], key=lambda name: -len(name))
    return _line("option", path, ",".join(names), kind, (option.help or "").rstrip("."))


def _argument_kind(path: str, argument: click.Argument) -> str:
    return _kind(path, argument) + ("*" if argument.nargs != 1 else "")


def _kind(path: str, param: click.Parameter) -> str:
    if isinstance(param.type, click.Choice):
        return "choice:" + "|".join(map(str, param.type.choices))
    if "--workspace" in param.opts and param.metavar == "NAME":
        return "workspace"
    metavar, name = param.metavar or "", param.name or ""
    return (
        _BY_COMMAND_AND_NAME.get(f"{path} {name}")
        or _BY_METAVAR.get(metavar)
        or (_BY_NAME.get(name) if metavar in _GENERIC_METAVARS else None)
        or "text"
    )


_GENERIC_METAVARS = ("", "[NAME]", "NAME", "NAME...", "[NAME]...", "FROM", "TO", "[-- COMMAND...]")


def _line(*fields: str) -> str:
    return "\t".join(" ".join(field.split()) for field in fields) + "\n"


if __name__ == "__main__":
    WORD_LIST_FILE.write_text("".join(word_list_lines()))
