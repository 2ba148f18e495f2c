"""Commands memory export/diff/contradictions/consolidate/refresh: memory as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ortet.cli.call import CliCall, group, verb
from ortet.cli.session_args import (
    find_session,
    id_suffix,
    open_session,
    read_session,
    session_argument_or_option,
)
from ortet.cli.terminal import output as render
from ortet.errors import NotFound

if TYPE_CHECKING:
    from ortet.journal.state.records import Decision, Fact
    from ortet.sessions.memory.report import MemoryDiff


@group
def memory() -> None:
    """Export, compare, consolidate and refresh the memory of sessions.

    \b
    Example:
      ortet memory export fix-42 -o memory.md
      ortet memory diff HEAD~3 HEAD
      ortet memory consolidate --dry-run
    """


@verb("export")
@session_argument_or_option
@click.option("-o", "--output", metavar="FILE", help="Write to this file.")
def memory_export(call: CliCall, session: str | None, *, output: str | None) -> None:
    """Print facts, decisions and episodes as Markdown.

    \b
    Example:
      ortet memory export fix-42 -o memory.md
    """
    from ortet.sessions.memory.report import markdown

    view = read_session(call, session)
    text = markdown(view)
    if output is None:
        lines = (render.safe(line, keep="\t") for line in text.splitlines())
        call.output.emit({"session": view.id, "markdown": text}, lines)
        return
    Path(output).write_text(text, encoding="utf-8")
    path = str(Path(output).absolute())
    call.output.emit({"session": view.id, "path": path}, [f"{view.name} -> {render.safe(output)}"])


@verb("diff")
@click.argument("old")
@click.argument("new", default="HEAD")
def memory_diff(call: CliCall, old: str, new: str) -> None:
    """Compare the facts of two commits, branches or sessions.

    Uncommitted facts are not compared. NEW is HEAD by default.

    \b
    Example:
      ortet memory diff HEAD~3
      ortet memory diff fix-42 fix-42/1
    """
    difference = call.hub.memory.diff(_commit(call, old), _commit(call, new))
    data = {**render.fields(difference), "same": difference.same}
    call.output.emit(data, list(_changes(call, difference)) or ["no difference"])


def _commit(call: CliCall, word: str) -> str:
    """Return the commit that a reference names, or the last commit of a session."""
    try:
        return call.resolve(word).hex()
    except NotFound as missing:
        try:
            row = find_session(call, word)
        except NotFound:
            raise missing from None
    head = call.hub.get(row.id).head
    if head is None:
        raise NotFound("no_commit", f"{row.name} has no commit yet: make one")
    return head.oid


def _changes(call: CliCall, difference: MemoryDiff) -> Iterator[str]:
    rows = [
        *(
            ("- " + _kind(one), id_suffix(one.id), _text_with_reason(one))
            for one in difference.given_up
        ),
        *(
            ("+ " + _kind(one), id_suffix(one.id), render.single_line(one.text))
            for one in difference.learned
        ),
        *(
            ("+ decision", id_suffix(one.id), _text_with_reason(one))
            for one in difference.decisions
        ),
        *(
            ("+ episode", id_suffix(one.id), render.single_line(one.summary))
            for one in difference.episodes
        ),
    ]
    for (mark, *_), line in zip(rows, call.output.table(rows), strict=True):
        yield call.output.paint(line, fg="green" if mark.startswith("+") else "red")


def _kind(fact: Fact) -> str:
    return "lesson" if fact.lesson else "fact"


def _text_with_reason(record: Fact | Decision) -> str:
    return render.single_line(record.text) + (
        f"  ({render.single_line(record.why)})" if record.why else ""
    )


@verb("consolidate")
@click.argument("agent", default="default")
@click.option("--dry-run", is_flag=True, help="Only report the facts that would be learned.")
def memory_consolidate(call: CliCall, agent: str, *, dry_run: bool) -> None:
    """Extract facts from the episodes of an agent.

    The facts are for all sessions of the agent. From sessions that were opened with a user's scope,
    the facts are for that user. Each fact names its source event. An episode is consolidated once,
    and existing facts are not changed.

    \b
    Example:
      ortet memory consolidate --dry-run
      ortet memory consolidate reviewer
    """
    with call.output.progress("consolidate"):
        report = call.hub.memory.consolidate(agent, dry_run=dry_run)
    rows = [("+", id_suffix(one.id), render.single_line(one.text)) for one in report.facts]
    rows += [("=", id_suffix(id_), render.single_line(text)) for text, id_ in report.linked]
    total = f"{render.plural(report.episodes, 'episode')}, {render.plural(len(rows), 'fact')}"
    end = f"{total}: nothing is changed" if dry_run else total
    call.output.emit(render.fields(report), [*call.output.table(rows), end])


@verb("contradictions")
@session_argument_or_option
def memory_contradictions(call: CliCall, session: str | None) -> None:
    """List facts that contradict each other, the older first.

    No fact is retracted automatically: use `ortet learn --supersedes` or `ortet facts forget`.

    \b
    Example:
      ortet memory contradictions fix-42
    """
    pairs = read_session(call, session).memory.contradictions()
    rows = [
        (
            id_suffix(fact.id),
            render.single_line(one.about) if fact is one.ours else "",
            render.single_line(fact.text),
        )
        for one in pairs
        for fact in (one.ours, one.theirs)
    ]
    call.output.emit(
        [render.fields(one) for one in pairs], call.output.table(rows) or ["no contradiction"]
    )


@verb("refresh")
@session_argument_or_option
def memory_refresh(call: CliCall, session: str | None) -> None:
    """Read the newest facts of shared memories into a session.

    A session that was restored, and each fork, has the facts of its commit before.

    \b
    Example:
      ortet memory refresh fix-42
    """
    opened = open_session(call, session)
    before = {fact.id for fact in opened.facts()}
    opened.memory.refresh()
    after = {fact.id for fact in opened.facts()}
    data = {"session": opened.id, "learned": sorted(after - before)}
    data["given_up"] = sorted(before - after)
    call.output.emit(data, [f"{len(after - before)} learned, {len(before - after)} given up"])


for _command in (
    memory_export,
    memory_diff,
    memory_contradictions,
    memory_consolidate,
    memory_refresh,
):
    memory.add_command(_command)
