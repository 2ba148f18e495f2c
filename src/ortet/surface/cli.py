"""The command line: verbs are loaded when they are asked for; an error ends with its code."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from keyword import iskeyword
from typing import NoReturn

import click

from ortet import __version__
from ortet.errors import Invalid, OrtetError, Refused, Unavailable, code_of
from ortet.surface.call import Call, common

INTERRUPTED = 130
PIPE_CLOSED = 141  # as a shell reports a process that SIGPIPE ended

# Verb -> the module that holds it, in the order of the help page.
SECTIONS: dict[str, dict[str, Sequence[str]]] = {
    "Work": {"cmd_work": ("init", "status", "commit", "run")},
    "Attempts": {"cmd_fork": ("fork", "merge", "land", "drop")},
    "Go back": {"cmd_move": ("restore", "rewind"), "cmd_bisect": ("bisect",)},
    "Look": {"cmd_history": ("log", "show", "diff"), "cmd_refs": ("branch", "tag", "reflog")},
    "Store": {
        "cmd_store": ("verify", "sweep", "export", "import", "stats"),
        "cmd_doctor": ("doctor",),
    },
}


class Verbs(click.Group):
    """Imports the module of a verb when the verb is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return [
            verb for section in SECTIONS.values() for verbs in section.values() for verb in verbs
        ]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        for section in SECTIONS.values():
            for module, verbs in section.items():
                if cmd_name in verbs:
                    name = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name
                    command: click.Command = getattr(import_module(f"ortet.surface.{module}"), name)
                    return command
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in SECTIONS.items():
            names = [verb for verbs in section.values() for verb in verbs]
            commands = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(title):
                formatter.write_dl(
                    [(name, found.get_short_help_str(80)) for name, found in commands if found]
                )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise _unknown_verb(args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


@click.group(
    cls=Verbs,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, "--version", message="%(prog)s %(version)s")
@click.option("-C", "directory", metavar="DIR", help="Work as if started in DIR.")
@common
@click.pass_context
def cli(ctx: click.Context, directory: str | None) -> None:
    """Git for the whole AI agent: commit, fork and restore everything in a directory.

    \b
    Example:
      ortet init                      make this directory a workspace
      ortet commit -m "it works"      record its present state
      ortet rewind                    go back to the commit before
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
    if directory is not None:
        ctx.obj.enter(directory)


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit: 0, what a command run by it returned, or the code of the error."""
    words = list(sys.argv[1:] if args is None else args)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    call = Call()
    _end_in_order()
    try:
        with call:
            cli.main(words, prog_name="ortet", obj=call, standalone_mode=False)
            sys.stdout.flush()
        code = call.exit_code
    except click.exceptions.Exit as done:
        code = done.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = INTERRUPTED
        call.note("interrupted")
    except click.UsageError as error:
        call.json = call.json or _asks_for_json(words)
        code = call.fail(Invalid("bad_usage", _usage(error)))
    except OrtetError as error:
        code = call.fail(error)
    except OSError as error:
        code = _closed_pipe() if error.errno == errno.EPIPE else call.fail(_as_ours(error))
    except Exception as error:
        code = call.crash(error)
    raise SystemExit(code)


def _end_in_order() -> None:
    """Asked to end, close what is open: a command that we run must not outlive us."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup has it ignored
            signal.signal(number, _leave)


def _leave(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def _as_ours(error: OSError) -> OrtetError:
    """What the system refused, in the words of our errors."""
    where = f": {error.filename}" if error.filename else ""
    text = f"{error.strerror or error}{where}"
    if isinstance(error, PermissionError):
        return Refused("no_permission", f"{text}; check who owns it, or work as its owner")
    return Unavailable("io_error", f"{text}; put it right and repeat the command")


def _closed_pipe() -> int:
    """The reader left (`ortet log | head`): say nothing, not even at interpreter exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return PIPE_CLOSED


def _usage(error: click.UsageError) -> str:
    where = error.ctx.command_path if error.ctx else "ortet"
    return f"{error.format_message().rstrip('.')}; `{where} --help` shows how to call it"


def _asks_for_json(words: Sequence[str]) -> bool:
    """A usage error may come before the option was read."""
    return "--json" in words[: words.index("--") if "--" in words else None]


def _unknown_verb(word: str, verbs: Sequence[str]) -> click.UsageError:
    from difflib import get_close_matches

    near = get_close_matches(word, verbs, n=1)
    hint = f": did you mean {near[0]!r}?" if near else ""
    return click.UsageError(f"no verb is called {word!r}{hint}")


__all__ = ["cli", "code_of", "main"]
