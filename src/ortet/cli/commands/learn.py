"""Commands learn, milestone, episodes: store facts, and list the episodes of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ortet.cli.call import CliCall, as_text, verb
from ortet.cli.commands.facts import find_fact
from ortet.cli.session_args import (
    agent_option,
    all_option,
    find_or_all,
    id_suffix,
    open_session,
    scope_option,
    session_option,
    text_or_stdin,
)
from ortet.cli.terminal import output
from ortet.cli.times import parse_time
from ortet.errors import Invalid

if TYPE_CHECKING:
    from ortet.journal.state.records import Episode
    from ortet.sessions.session import Session

_COMMIT_TITLE_CHARS = 72
"""The maximum length of a commit message."""

commit_option = click.option(
    "--commit", is_flag=True, help="Commit afterwards, so that other sessions see it."
)


@verb()
@click.argument("text", required=False)
@click.option("--about", default="", metavar="SUBJECT", help="The topic.")
@scope_option
@click.option(
    "--confidence", type=float, metavar="P", help="The confidence, from 0 to 1; by default 1."
)
@click.option(
    "--since", metavar="WHEN", help="Valid from this time on: a date, a time, or 7d (ago)."
)
@click.option("--until", metavar="WHEN", help="Valid until this time; 90d means 90 days from now.")
@click.option("--source", type=int, metavar="N", help="The number of the source event.")
@click.option("--supersedes", metavar="FACT", help="The id of the fact that it replaces.")
@click.option("--lesson", is_flag=True, help="The fact is a lesson from a failure.")
@commit_option
@session_option
def learn(call: CliCall, text: str | None, *, session: str | None, **options: Any) -> None:
    """Learn a fact, for this session or for others.

    Without TEXT, or for -, it is read from standard input. A fact of an agent, a user or a project
    is shared with their other sessions at the next commit. Times are in UTC unless they have a
    zone.

    \b
    Example:
      ortet learn -s fix-42 "tests need PYTHONPATH=src" --about testing
      ortet learn -s fix-42 "deploys run on Fridays" --scope project:shop --since 2026-01-01
      ortet learn -s fix-42 "deploys run on Mondays" --supersedes 5c0f3b7a --commit
    """
    text = text_or_stdin(text)
    about, scope = as_text(options["about"]), options["scope"]
    more = _fact_options(call, options)
    if options["lesson"] and more:
        raise Invalid("bad_usage", f"a lesson takes no --{next(iter(more))}: leave it out")
    opened = open_session(call, session)
    if "supersedes" in more:
        more["supersedes"] = find_fact(opened, more["supersedes"], must_be_believed=True).id
    if options["lesson"]:
        id_ = opened.lesson(text, about=about, scope=scope)
    else:
        id_ = opened.learn(text, about=about, scope=scope, **more)
    commit = _commit(opened, "learned", text) if options["commit"] else None
    data = {"id": id_, "session": opened.id, "commit": commit}
    call.output.emit(data, [f"learned {id_suffix(id_)}: {output.single_line(text)}"])
    if opened.memory.fact(id_).scope and commit is None:
        call.output.note("others are told at the next commit")


def _commit(opened: Session, what: str, text: str) -> str:
    return opened.commit(
        f"{what}: {output.title(text)}"[:_COMMIT_TITLE_CHARS] if text else what
    ).oid


def _fact_options(call: CliCall, options: dict[str, Any]) -> dict[str, Any]:
    values = {
        "confidence": options["confidence"],
        "since": parse_time(call, "--since", options["since"]),
        "until": parse_time(call, "--until", options["until"], ahead=True),
        "source": options["source"],
        "supersedes": options["supersedes"],
    }
    return {name: value for name, value in values.items() if value is not None}


@verb()
@click.option(
    "--since", metavar="WHEN", help="Only episodes since then: a date, a time, or 7d (ago)."
)
@click.option("--until", metavar="WHEN", help="Only episodes that began before this time.")
@click.option("--outcome", metavar="OUTCOME", help="Only episodes with this outcome, such as done.")
@agent_option
@all_option
@session_option
def episodes(call: CliCall, *, since: str | None, until: str | None, **options: Any) -> None:
    """List episodes, the oldest first.

    An episode ends when a session closes, compacts or reaches a milestone.

    The episodes are those of a session. If no session works here and none is named, they are those
    of all sessions.

    \b
    Example:
      ortet episodes --all --since 7d
      ortet episodes -s fix-42 --outcome done
    """
    row = find_or_all(
        call, options["session"], agent=options["agent"], everything=options["everything"]
    )
    listed = call.hub.memory.episodes(
        agent=options["agent"],
        session=row.id if row is not None else None,
        since=parse_time(call, "--since", since),
        until=parse_time(call, "--until", until),
        outcome=options["outcome"],
    )
    call.output.emit(
        [output.fields(one) for one in listed], call.output.table(map(_episode_cells, listed))
    )


def _episode_cells(episode: Episode) -> tuple[str, ...]:
    return (
        id_suffix(episode.id),
        output.format_time(episode.time),
        output.safe(episode.session),
        f"{episode.first}-{episode.last}",
        output.title(episode.outcome) or episode.cause,
        output.single_line(episode.summary),
    )


@verb()
@click.argument("summary", required=False)
@click.option("--outcome", default="", metavar="OUTCOME", help="The outcome, such as done.")
@click.option("--importance", type=float, metavar="P", help="The importance, from 0 to 1.")
@commit_option
@session_option
def milestone(
    call: CliCall,
    summary: str | None,
    *,
    outcome: str,
    importance: float | None,
    commit: bool,
    session: str | None,
) -> None:
    """Record the events since the last episode as one episode.

    Without SUMMARY, a summary of messages, decisions and facts is made. For -, it is read from
    standard input.

    \b
    Example:
      ortet milestone -s fix-42 "the login test passes again" --outcome done
    """
    text = text_or_stdin(summary) if summary is not None else ""
    opened = open_session(call, session)
    id_ = opened.milestone(text, outcome=as_text(outcome), importance=importance)
    commit_info = _commit(opened, "milestone", text) if commit else None
    data = {"id": id_ or None, "session": opened.id, "commit": commit_info}
    done = f"episode {id_suffix(id_)}" if id_ else "nothing happened since the last one"
    call.output.emit(data, [done])
