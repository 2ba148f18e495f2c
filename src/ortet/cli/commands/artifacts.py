"""Commands artifact add/ls/show/get/orphans: files that sessions produced, and their origin."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortet.cli.call import CliCall, as_text, group, verb
from ortet.cli.session_args import (
    find_session,
    id_suffix,
    open_session,
    read_session,
    session_argument_or_option,
    session_option,
)
from ortet.cli.terminal import output as render
from ortet.cli.terminal.output import EXIT_PIPE_CLOSED
from ortet.errors import Invalid, NotFound

if TYPE_CHECKING:
    from ortet.journal.state.records import Artifact
    from ortet.sessions.reader import SessionReader


@group
def artifact() -> None:
    """Store artifacts of a session in versions, with their lineage.

    \b
    Example:
      ortet artifact add report.md --kind report -s fix-42
      ortet artifact ls fix-42
      ortet artifact get report.md@1 -s fix-42 -o old.md
    """


@verb()
@click.argument("path", metavar="FILE", required=False)
@click.option(
    "--as",
    "name",
    metavar="NAME",
    help="The name of the artifact, by default the path of the file.",
)
@click.option(
    "--link", default="", metavar="URL", help="Store an address instead of content; needs --as."
)
@click.option("--kind", default="", metavar="TEXT", help="The kind, such as report or patch.")
@click.option(
    "--media", default="", metavar="TYPE", help="The media type; by default derived from the name."
)
@click.option("--why", default="", metavar="TEXT", help="The reason.")
@click.option("--allow-secrets", is_flag=True, help="Accept content with a known secret.")
@session_option
def add(
    call: CliCall,
    path: str | None,
    *,
    name: str | None,
    link: str,
    kind: str,
    media: str,
    why: str,
    allow_secrets: bool,
    session: str | None,
) -> None:
    """Store a file, standard input (-) or a link as an artifact.

    If the name exists already, this is its next version.

    \b
    Example:
      ortet artifact add report.md --kind report --why "asked for by Ann"
      make chart | ortet artifact add - --as chart.png
      ortet artifact add --as pull-request --link https://example.org/pull/7
    """
    if (path is None) != bool(link) or ((link or path == "-") and not name):
        raise Invalid(
            "bad_usage", "give a FILE, or - with --as NAME for standard input, or --link with --as"
        )
    row = find_session(call, session)
    opened = open_session(call, row.id)
    about: dict[str, Any] = {"kind": as_text(kind), "media": media, "why": as_text(why)}
    about["allow_secrets"] = allow_secrets
    if link:
        record = opened.artifact(as_text(name or ""), link=link, **about)
    elif name is not None:
        record = opened.artifact(as_text(name), data=_content(path or "-"), **about)
    else:
        where = os.path.abspath(path or "") if row.path else path or ""
        record = opened.artifact(where, **about)
    call.output.emit(render.fields(record), [f"{_label(record)}, {_size(record)}"])


def _content(path: str) -> bytes:
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise NotFound("no_file", f"there is no file {path}: write it first") from None


@verb("ls")
@session_argument_or_option
@click.option("--all", "all_", is_flag=True, help="List every version, not only the last.")
def artifact_ls(call: CliCall, session: str | None, *, all_: bool) -> None:
    """List the artifacts of a session.

    \b
    Example:
      ortet artifact ls fix-42 --all
    """
    listed = read_session(call, session).artifacts()
    if not all_:
        listed = list(
            {one.name: one for one in sorted(listed, key=lambda one: one.version)}.values()
        )
    rows = [
        (_label(one), _size(one), render.format_time(one.time), render.safe(one.kind or one.media))
        for one in listed
    ]
    call.output.emit([render.fields(one) for one in listed], call.output.table(rows))


@verb("show")
@click.argument("name", metavar="NAME[@VERSION]")
@session_option
def artifact_show(call: CliCall, name: str, *, session: str | None) -> None:
    """Show the lineage of an artifact: its action and the reason.

    \b
    Example:
      ortet artifact show report.md -s fix-42
    """
    view = read_session(call, session)
    lineage = view.artifact_store.lineage(*_split_version(view, name))
    record, action = lineage.artifact, lineage.action
    lines = [
        f"{_label(record)}, {_size(record)}, {record.media}",
        *([f"link    {render.safe(record.link)}"] if record.link else []),
        f"made    {render.format_time(record.time)}, event {record.seq}",
        *(
            [f"by      {action.name}, action {id_suffix(action.id)}, {action.state}"]
            if action
            else []
        ),
        *([f"because {render.title(lineage.why)}"] if lineage.why else []),
        *([f"content {record.oid}"] if record.oid else []),
    ]
    call.output.emit(lineage, lines)


@verb()
@click.argument("name", metavar="NAME[@VERSION]")
@click.option("-o", "--output", "output", metavar="FILE", help="Write to this file.")
@session_option
def get(call: CliCall, name: str, *, output: str | None, session: str | None) -> None:
    """Print the content of an artifact, by default of its last version.

    With --json the content is in base64, unless it is written to a file.

    \b
    Example:
      ortet artifact get report.md@1 -s fix-42 -o old.md
    """
    view = read_session(call, session)
    record = view.artifact_store.lineage(*_split_version(view, name)).artifact
    data = view.artifact_store.artifact_data(record.name, record.version)
    if output is not None:
        Path(output).write_bytes(data)
        call.output.emit(
            {**render.fields(record), "path": os.path.abspath(output)},
            [f"{_label(record)} -> {render.safe(output)}"],
        )
    elif call.output.json:
        call.output.emit({**render.fields(record), "content": data})
    elif not call.output.quiet:
        try:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise SystemExit(EXIT_PIPE_CLOSED) from None


@verb()
@session_argument_or_option
def orphans(call: CliCall, session: str | None) -> None:
    """List artifacts without content, and files without an artifact.

    The files are those that were added to the workspace since the first commit.

    \b
    Example:
      ortet artifact orphans fix-42
    """
    paths = open_session(call, session).artifact_store.orphans()
    lines = [f"lost  {render.safe(one)}" for one in paths.missing]
    lines += [f"file  {render.safe(one)}" for one in paths.files]
    call.output.emit(paths, lines or ["none"])


for _command in (add, artifact_ls, artifact_show, get, orphans):
    artifact.add_command(_command)


def _split_version(view: SessionReader, word: str) -> tuple[str, int | None]:
    """Split NAME@VERSION. An artifact whose whole name contains an @ takes precedence."""
    name, _, version = word.rpartition("@")
    known = any(one.name == word for one in view.artifacts())
    if known or not name or not version.isdigit():
        return as_text(word), None
    return as_text(name), int(version)


def _label(artifact: Artifact) -> str:
    return f"{render.safe(artifact.name)}@{artifact.version}"


def _size(artifact: Artifact) -> str:
    return "a link" if artifact.link and not artifact.oid else render.format_size(artifact.size)
