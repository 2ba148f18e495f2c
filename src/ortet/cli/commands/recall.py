"""Commands recall and context: search memory, and build the context for a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ortet.cli.call import CliCall, as_text, verb
from ortet.cli.session_args import (
    agent_option,
    all_option,
    find_or_all,
    id_suffix,
    read_session,
    scope_option,
    session_option,
    text_or_stdin,
)
from ortet.cli.terminal import output
from ortet.cli.times import parse_time
from ortet.errors import Invalid

if TYPE_CHECKING:
    from ortet.journal.conversation.context import ModelContext
    from ortet.memory.records import Scores
    from ortet.sessions.results import RecallHit

_TIERS = ("working", "episodic", "semantic")


@verb()
@click.argument("query")
@click.option(
    "-k",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="The maximum number of results.",
)
@click.option(
    "--tier", multiple=True, type=click.Choice(_TIERS), help="Only this tier; may be repeated."
)
@click.option(
    "--at", metavar="WHEN", help="Only memories that existed then: a date, a time, or 7d (ago)."
)
@click.option("--on", metavar="WHEN", help="Only facts that are valid at that time.")
@click.option("--since", metavar="WHEN", help="Only events since this time.")
@scope_option
@agent_option
@all_option
@click.option("--explain", is_flag=True, help="Show why each result was found.")
@session_option
def recall(call: CliCall, query: str, *, k: int, explain: bool, **options: Any) -> None:
    """Find messages, events and facts by a question, the best first.

    Searches a session and the memories that it shares. If no session works here and none is named,
    all sessions are searched. For -, the question is read from standard input. Nothing is changed.

    \b
    Example:
      ortet recall -s fix-42 "how are the tests run?"
      ortet recall --all --tier semantic -k 3 "deploy token"
      ortet recall -s fix-42 "which database?" --at 2026-11-16 --explain
    """
    text = text_or_stdin(query) if query == "-" else as_text(query)
    row = find_or_all(
        call, options["session"], agent=options["agent"], everything=options["everything"]
    )
    search_options: dict[str, Any] = {
        "tiers": options["tier"] or None,
        "scope": options["scope"],
        "explain": explain,
        **{name: parse_time(call, f"--{name}", options[name]) for name in ("at", "on", "since")},
    }
    if row is not None:
        recalled = call.hub.get(row.id).recall(text, k, **search_options)
    else:
        recalled = call.hub.recall(text, k, agent=options["agent"], **search_options)
    hits = [output.fields(hit) for hit in recalled]
    lines = call.output.table(map(_hit_cells, recalled))
    if explain:
        scores = map(_score_line, recalled)
        lines = [line for pair in zip(lines, scores, strict=True) for line in pair]
    data = {"hits": hits, "dense": recalled.dense}
    call.output.emit(data, lines or ["nothing is remembered of it"])
    if recalled.dense not in ("", "all"):
        call.output.note(_dense_note(recalled.dense))


def _dense_note(dense: str) -> str:
    """Explain why semantic search was not used, or only partly."""
    if dense == "some":
        return "by words and partly by meaning: not all is embedded yet"
    why = "the embedder is late" if dense == "late" else dense.removeprefix("failed: ")
    return f"by words alone: {output.safe(why)}"


def _hit_cells(hit: RecallHit) -> tuple[str, ...]:
    return (
        f"{hit.score:.4f}",
        hit.tier,
        output.format_time(hit.time),
        output.safe(hit.role) or f"{hit.source.kind} {id_suffix(hit.id)}",
        output.safe(str(hit.source)),
        output.single_line(hit.text),
    )


def _score_line(hit: RecallHit) -> str:
    return f"        {_scores(hit.scores)}" if hit.scores is not None else ""


def _scores(scores: Scores) -> str:
    parts = []
    if scores.bm25_rank:
        parts.append(f"words {scores.bm25:.2f} (rank {scores.bm25_rank})")
    if scores.cosine_rank:
        parts.append(f"meaning {scores.cosine:.2f} (rank {scores.cosine_rank})")
    if scores.recency_rank:
        parts.append(f"newness rank {scores.recency_rank}")
    parts.append(f"importance {scores.importance:g}")
    if scores.terms:
        parts.append(f"has {' '.join(map(output.safe, scores.terms))}")
    if scores.pruned:
        parts.append(f"too common {' '.join(map(output.safe, scores.pruned))}")
    return ", ".join(parts)


@verb()
@click.argument("query", default="")
@click.option(
    "--tokens",
    type=click.IntRange(min=1),
    default=8000,
    show_default=True,
    metavar="N",
    help="The approximate maximum number of tokens.",
)
@click.option("--chat", is_flag=True, help="Print JSON for chat completions.")
@click.option(
    "--parts", is_flag=True, help="Print JSON with the system text apart and content in parts."
)
@session_option
def context(
    call: CliCall, query: str, *, tokens: int, chat: bool, parts: bool, session: str | None
) -> None:
    """Print the context for a model, with memories for QUERY.

    The summary and the newest messages that fit come first, then facts and episodes that QUERY
    recalls, with goal, plan and unsettled effects.

    \b
    Example:
      ortet context -s fix-42 "how are the tests run?" --tokens 2000
      ortet context -s fix-42 "how are the tests run?" --chat > messages.json
    """
    if chat and parts:
        raise Invalid("bad_usage", "--chat and --parts exclude each other: give one of them")
    text = text_or_stdin(query) if query == "-" else as_text(query)
    model_context = read_session(call, session).context(text, tokens)
    if chat or parts:
        messages = model_context.chat() if chat else model_context.parts()
        call.output.emit(messages, [output.to_json(messages)])
        return
    call.output.emit(output.fields(model_context), _message_lines(model_context))


def _message_lines(messages: ModelContext) -> Iterator[str]:
    from ortet.journal.conversation.text import text_of

    for message in messages:
        who = "remembered" if message.extra.get("memory") else output.safe(message.role)
        yield f"[{who}]"
        yield from map(output.safe, text_of(message.content).splitlines())
