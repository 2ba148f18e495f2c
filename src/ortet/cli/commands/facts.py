"""Commands facts ls/show/forget/history: the facts of a session, their validity and origin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ortet.cli.call import CliCall, as_text, common_options, verb
from ortet.cli.session_args import (
    id_suffix,
    match_id,
    open_session,
    read_session,
    scope_option,
    session_argument_or_option,
    session_option,
)
from ortet.cli.terminal import output
from ortet.cli.times import parse_time
from ortet.errors import NotFound

if TYPE_CHECKING:
    from ortet.journal.state.records import Fact
    from ortet.sessions.reader import SessionReader

_ID_DIGITS = 32
"""The number of digits of a full id."""


class FactsGroup(click.Group):
    """A group that runs `ls` if no subcommand is given. The name of a session may follow."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        flags = {flag for param in self.get_params(ctx) for flag in param.opts}
        first = next((n for n, word in enumerate(args) if word not in flags), len(args))
        if not (set(args[:first]) & set(ctx.help_option_names)) and (
            first == len(args) or args[first] not in self.commands
        ):
            args = [*args[:first], "ls", *args[first:]]
        return super().parse_args(ctx, args)


@click.group(cls=FactsGroup)
@common_options
def facts() -> None:
    """List the facts of a session; show, retract or trace one fact.

    FACT is an id, or four or more of its first or last digits. Without a subcommand, the facts are
    listed.

    \b
    Example:
      ortet facts fix-42
      ortet facts ls fix-42 --scope agent --at 7d
      ortet facts show 5c0f3b7a -s fix-42
      ortet facts forget 5c0f3b7a -s fix-42 --why "the tests moved"
    """


@verb("ls")
@session_argument_or_option
@scope_option
@click.option("--about", metavar="SUBJECT", help="Only facts with this topic.")
@click.option(
    "--at", metavar="WHEN", help="Facts that were believed then: a date, a time, or 7d (ago)."
)
@click.option("--on", metavar="WHEN", help="Only facts that are valid at that time.")
@click.option("--past", is_flag=True, help="Also facts that were retracted.")
def facts_ls(
    call: CliCall,
    session: str | None,
    *,
    scope: str | None,
    about: str | None,
    at: str | None,
    on: str | None,
    past: bool,
) -> None:
    """List the believed facts of every scope, the oldest first.

    --at asks what was believed at a time, --on what is valid at a time. Together they ask "what did
    we believe on Tuesday about Monday".

    \b
    Example:
      ortet facts ls fix-42 --about testing
      ortet facts ls fix-42 --at 2026-11-17 --on 2026-11-16
    """
    listed = read_session(call, session).facts(
        scope=scope,
        about=None if about is None else as_text(about),
        at=parse_time(call, "--at", at),
        on=parse_time(call, "--on", on),
        past=past,
    )
    call.output.emit(
        [output.fields(fact) for fact in listed], call.output.table(map(_cells, listed))
    )


def _cells(fact: Fact) -> tuple[str, ...]:
    kind = "lesson" if fact.lesson else "fact"
    mark = f"{kind}, given up" if fact.ended else kind
    return (
        id_suffix(fact.id),
        mark,
        output.safe(fact.scope) or "session",
        output.single_line(fact.about),
        output.single_line(fact.text),
    )


def find_fact(view: SessionReader, fact_id: str, *, must_be_believed: bool = False) -> Fact:
    """Return the fact with an id, or with digits of an id.

    Retracted facts are found too, unless `must_be_believed`.
    """
    id_ = (
        fact_id
        if len(fact_id) == _ID_DIGITS
        else match_id((one.id for one in view.facts(past=True)), fact_id)
    )
    if not id_:
        raise NotFound(
            "no_fact",
            f"{view.name} knows no fact {fact_id!r}: `ortet facts ls {view.name} --past` lists "
            "them",
        )
    fact = view.memory.fact(id_)
    if must_be_believed and fact.ended:
        raise NotFound(
            "no_fact",
            f"{id_suffix(id_)} was given up on {output.format_time(fact.ended)}: `ortet facts "
            "history "
            f"{id_suffix(id_)} -s {view.name}` shows what became of it",
        )
    return fact


@verb("show")
@click.argument("fact")
@session_option
def facts_show(call: CliCall, fact: str, *, session: str | None) -> None:
    """Show all fields of a fact: its validity and its source.

    \b
    Example:
      ortet facts show 5c0f3b7a -s fix-42
    """
    view = read_session(call, session)
    record = find_fact(view, fact)
    origin = _origin(call, view, record)
    call.output.emit({**output.fields(record), "origin": origin}, _block(view, record, origin))


def _origin(call: CliCall, view: SessionReader, fact: Fact) -> dict[str, Any] | None:
    """Return the event that a fact comes from, as far as it is still stored."""
    from ortet.hub.governance.audit import audit_line
    from ortet.sessions.memory.recall import words_of
    from ortet.sessions.memory.report import event_at, origin_of

    origin = origin_of(view, fact)
    if origin is None:
        return None
    names = {row.id: row.name for row in call.hub.sessions()}
    data = {**output.fields(origin), "name": names.get(origin.session)}
    event = event_at(view, origin)
    if event is None:
        return {**data, "kind": None, "text": None}
    text = None if event.erased else words_of(event) or audit_line(event).what
    who = event.data.get("role") or event.actor
    return {**data, "kind": event.kind, "by": who, "time": event.time, "text": text}


def _block(view: SessionReader, fact: Fact, origin: dict[str, Any] | None) -> Iterator[str]:
    yield f"{'lesson' if fact.lesson else 'fact'} {fact.id}"
    yield from _lines("text", fact.text)
    yield from _lines("about", fact.about)
    yield f"scope       {output.safe(fact.scope) or 'session'}"
    yield f"confidence  {fact.confidence:g}"
    yield f"holds       {_validity(fact)}"
    yield f"learned     {output.format_time(fact.time)}"
    if origin is not None:
        whose = origin["name"] or id_suffix(origin["session"]) or "another store"
        where = f"event {origin['seq']} of {whose}"
        if origin["kind"] is None:
            yield f"from        {where}, which is not here any more"
        else:
            yield f"from        {where}, {origin['kind']} by {output.safe(origin['by'])}"
            if not (origin["kind"] in ("fact", "lesson") and origin["text"] == fact.text):
                yield from _lines("", "(erased)" if origin["text"] is None else origin["text"])
    for name, other in (("supersedes", fact.supersedes), ("nearly", fact.like)):
        if other:
            yield f"{name:<10}  {_fact_label(view, other)}"
    if fact.ended:
        by = f", superseded by {_fact_label(view, fact.ended_by)}" if fact.ended_by else ""
        why = f": {output.single_line(fact.why)}" if fact.why else ""
        yield f"given up    {output.format_time(fact.ended)}{by}{why}"


def _lines(name: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines()):
        yield f"{name if not number else '':<10}  {output.safe(line)}".rstrip()


def _validity(fact: Fact) -> str:
    from ortet.sessions.times import day

    since = f"since {day(fact.since)} UTC" if fact.since else ""
    until = f"until {day(fact.until)} UTC" if fact.until else ""
    return ", ".join(filter(None, (since, until))) or "always"


def _fact_label(view: SessionReader, id_: str) -> str:
    try:
        return f"{id_suffix(id_)} {output.single_line(view.memory.fact(id_).text)}"
    except NotFound:  # from a session or fork that this session does not know
        return id_suffix(id_)


@verb("forget")
@click.argument("fact")
@click.option("--why", default="", metavar="TEXT", help="The reason.")
@session_option
def facts_forget(call: CliCall, fact: str, *, why: str, session: str | None) -> None:
    """Retract a fact.

    The journal keeps the fact and the reason. `ortet facts history` shows it, and `ortet learn`
    learns it again. A shared fact is retracted for the other sessions at the next commit.

    \b
    Example:
      ortet facts forget 5c0f3b7a -s fix-42 --why "the tests moved"
    """
    opened = open_session(call, session)
    record = find_fact(opened, fact, must_be_believed=True)
    opened.forget(record, why=as_text(why))
    data = {"id": record.id, "text": record.text, "why": why, "session": opened.id}
    call.output.emit(data, [f"forgot {id_suffix(record.id)}: {output.single_line(record.text)}"])


@verb("history")
@click.argument("fact")
@session_option
def facts_history(call: CliCall, fact: str, *, session: str | None) -> None:
    """List a fact with those before and after it.

    These are the facts that it superseded and that superseded it.

    \b
    Example:
      ortet facts history 5c0f3b7a -s fix-42
    """
    view = read_session(call, session)
    versions = view.memory.fact_history(find_fact(view, fact).id)
    rows = [
        (
            id_suffix(one.id),
            output.format_time(one.time),
            f"to {output.format_time(one.ended)}" if one.ended else "believed",
            output.single_line(one.text)
            + (f"  ({output.single_line(one.why)})" if one.why else ""),
        )
        for one in versions
    ]
    call.output.emit([output.fields(one) for one in versions], call.output.table(rows))


for _command in (facts_ls, facts_show, facts_forget, facts_history):
    facts.add_command(_command)
