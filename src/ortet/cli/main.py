"""The table of commands, and the main function. Commands are imported when they are used."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from keyword import iskeyword
from typing import NoReturn

import click

from ortet import __version__
from ortet.cli.call import CliCall, common_options
from ortet.cli.terminal.output import EXIT_PIPE_CLOSED
from ortet.errors import Conflict, Invalid, OrtetError, Refused, Unavailable

EXIT_INTERRUPTED = 130

# Command names by help section and module, in the order of the help page.
SECTIONS: dict[str, dict[str, Sequence[str]]] = {
    "Work": {"workspace": ("init", "status", "commit", "run"), "watch": ("watch",)},
    "Attempts": {"fork": ("fork", "merge", "land", "drop"), "swarm": ("swarm",)},
    "Live machines": {
        "machine": ("start", "ps", "spawn", "logs", "expose", "stop", "kill", "rm"),
        "attach": ("attach", "cp"),
    },
    "Undo and restore": {
        "undo": ("undo", "redo"),
        "restore": ("restore", "rewind"),
        "bisect": ("bisect",),
    },
    "History": {"history": ("log", "show", "diff"), "refs": ("branch", "tag", "reflog")},
    "Sessions": {
        "session": ("session", "say", "plan", "decide"),
        "journal": ("journal", "brief"),
        "environment": ("environment",),
        "turn": ("turn", "carry"),
    },
    "Memory": {
        "recall": ("recall", "context"),
        "facts": ("facts",),
        "learn": ("learn", "milestone", "episodes"),
        "memory": ("memory",),
    },
    "Actions": {
        "actions": ("act", "effects", "comment"),
        "artifacts": ("artifact",),
        "budget": ("budget", "bill"),
    },
    "External state": {
        "external_state": ("collab", "window", "token", "vault"),
        "secrets": ("secret",),
    },
    "Coding agents": {"mcp": ("mcp",), "hook": ("hook",)},
    "Runs": {"replay": ("replay", "whatif", "diff-runs")},
    "Life cycle of a session": {
        "lifecycle": ("pause", "resume", "finish", "archive", "unarchive", "compact", "checkpoint"),
    },
    "Governance": {
        "lifecycle": ("audit", "retain"),
        "governance": ("retention", "hold", "release", "erase", "dataset"),
    },
    "Store": {
        "store": ("verify", "repair", "backup", "sweep", "export", "import"),
        "stats": ("stats",),
        "transfer": ("clone", "pull", "push"),
        "migrate": ("migrate",),
        "doctor": ("doctor",),
        "agent": ("agent",),
        "completion": ("completion",),
    },
    "Servers": {"serve": ("serve",), "access": ("access",)},
}


_HIDDEN = {"machine": "machine_internal", "values": "completion"}
"""Hidden commands that other commands run in the host agent, and the shell at completion."""


class LazyVerbs(click.Group):
    """A click group that imports the module of a command when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return [
            verb for section in SECTIONS.values() for verbs in section.values() for verb in verbs
        ]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name in _HIDDEN:
            inner: click.Command = getattr(
                import_module(f"ortet.cli.commands.{_HIDDEN[cmd_name]}"), cmd_name
            )
            return inner
        for section in SECTIONS.values():
            for module, verbs in section.items():
                if cmd_name in verbs:
                    name = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name.replace("-", "_")
                    command: click.Command = getattr(
                        import_module(f"ortet.cli.commands.{module}"), name
                    )
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
    cls=LazyVerbs,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, "--version", message="%(prog)s %(version)s")
@click.option("-C", "directory", metavar="DIR", help="Work as if started in DIR.")
@partial(common_options, top=True)
@click.pass_context
def cli(ctx: click.Context, directory: str | None) -> None:
    """Git for the whole AI agent: commit, fork and restore all of it.

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


_GC_THRESHOLD = 200_000
"""A command is short. The default GC threshold would cost 10% of its time."""


def main() -> NoReturn:
    """Run one command and exit."""
    gc.set_threshold(_GC_THRESHOLD)
    _open_missing_streams()
    code = run(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    # Everything is closed. Freeing all objects after a scan of 30 000 files would take 30 ms more.
    os._exit(code)


def _open_missing_streams() -> None:
    """Open /dev/null for each standard stream that the caller closed.

    Otherwise the next opened file would get the number of that stream.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest free number
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def run(words: list[str], call: CliCall | None = None) -> int:
    """Run a command and return the exit code.

    The code is 0, the exit code of a program that the command ran, or the code of the error.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    call = call or CliCall()
    _install_signal_handlers()
    try:
        with call:
            code = cli.main(words, prog_name="ortet", obj=call, standalone_mode=False)
            call.output.flush()
        return code or call.output.exit_code
    except SystemExit as end:  # a signal, or the reader of our output closed the pipe
        return end.code if isinstance(end.code, int) else 1
    except (click.Abort, KeyboardInterrupt):
        call.output.note("interrupted")
        return EXIT_INTERRUPTED
    except Exception as error:
        call.output.json = call.output.json or _asks_for_json(words)
        if isinstance(error, Conflict) and not call.daemon_cache:
            from ortet.cli.daemon.machines import retry_in_agent

            if (code := retry_in_agent(words, error, call)) is not None:
                return code
        return _print_error(call, error)


def _print_error(call: CliCall, error: Exception) -> int:
    """Print an error and return its exit code."""
    if isinstance(error, click.UsageError):
        return call.output.print_error(Invalid("bad_usage", _usage(error)))
    if isinstance(error, OrtetError):
        return call.output.print_error(error)
    if isinstance(error, OSError):
        return (
            EXIT_PIPE_CLOSED
            if error.errno == errno.EPIPE
            else call.output.print_error(to_ortet_error(error))
        )
    return call.output.print_bug(error)


def _install_signal_handlers() -> None:
    """Exit cleanly at SIGTERM and SIGHUP, so that a program that we run does not outlive us."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # not if nohup ignores it
            signal.signal(number, _exit_on_signal)


def _exit_on_signal(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def to_ortet_error(error: OSError) -> OrtetError:
    """Convert an OSError into an OrtetError."""
    where = f": {error.filename}" if error.filename else ""
    text = f"{error.strerror or error}{where}"
    if isinstance(error, PermissionError):
        return Refused("no_permission", f"{text}; check who owns it, or work as its owner")
    return Unavailable("io_error", f"{text}; put it right and repeat the command")


def _usage(error: click.UsageError) -> str:
    where = error.ctx.command_path if error.ctx else "ortet"
    text = " ".join(error.format_message().split())  # click puts choices on separate lines
    return f"{text.rstrip('.')}; `{where} --help` shows how to call it"


def _asks_for_json(words: Sequence[str]) -> bool:
    """Return True if --json is among the words.

    An error may come before click parsed the option.
    """
    return "--json" in words[: words.index("--") if "--" in words else None]


def _unknown_verb(word: str, verbs: Sequence[str]) -> click.UsageError:
    from difflib import get_close_matches

    near = get_close_matches(word, verbs, n=1)
    hint = f": did you mean {near[0]!r}?" if near else ""
    return click.UsageError(f"no verb is called {word!r}{hint}")


__all__ = ["cli", "main", "run"]
