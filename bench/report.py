"""bench/RESULTS.md: asked next to measured, the peers beside it, the host below; one part each for
files, sessions, live machines, memory, the server, the adapters and stores in servers: a run of one
leaves the figures of the others as they are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

import msgspec

import adapters_rows
import live_rows
import memory_rows
import memory_tables
import rows as file_rows
import scale_rows
import serve_rows
import serve_tables
import session_rows
from measure import Sample, number
from rows import Found, Row

HEAD = """\
# Results

Written by `scripts/bench`: do not edit. Each part is of one run, with its date and host below it.
Ratio: the peer's p50 over Ortet's.
"""
QUICK = "\n**A quick run on little data: not the one the targets are about.**\n"


Table = tuple[str, list[str], list[list[str]]]
"""Title, head and body."""


class Part(msgspec.Struct, frozen=True):
    """A section of its own: written whole, by one run."""

    key: str
    title: str
    about: str
    rows: Sequence[Row]
    tables: Callable[[Found], Iterable[Table]] = lambda _: ()


FILES = Part(
    "files",
    "Files and machines",
    """\
All systems in one run, one after the other, each on its own copy of the workspace, page cache
warm, durable at the end of each commit. Times of peers are whole commands, of Ortet calls in an
open hub unless the row says otherwise; the first commit is a whole process for all.
""",
    file_rows.ROWS,
)
SESSION = Part(
    "session",
    "Sessions",
    """\
All systems on one disk, taking turns: one of ours, then one of each of theirs, so that noise hits
all alike. Messages are 400 bytes of English-like text from a fixed seed, two a turn. Peers run as
documented, in processes of their own; the time is taken inside them, without the way there. What
their own connection says of its durability (journal mode and `synchronous`) stands beside them;
Ortet is WAL with `synchronous=FULL` where nothing else is said, and a turn of it is two durable
events, where SQLiteSession writes both messages in one transaction. Group commit is timed from the
first event until `pause` came back, when all are on the disk. Sizes are blocks of every file, the
log moved into its database first. *Committed*: after one `commit`, which holds the events a second
time, sealed; *trimmed*: after `hub.governance.retain()`, which forgets rows that commits hold, and
a `verify`.
""",
    session_rows.ROWS,
)
LIVE = Part(
    "live",
    "Live machines",
    """\
Ortet and raw CRIU on the same running processes, in turn, with the same flags and with workers
that were started before. Raw CRIU copies the upper directories (`cp -a`) while the processes stand
still, and restores beside them; *storing* is a second, durable copy of its images, without
compression or deduplication. Ortet's commits are durable. Frozen is the longest time in which a
program inside, that looks at the clock every half millisecond, did not run.
""",
    live_rows.ROWS,
)
MEMORY = Part(
    "memory",
    "Memory",
    """\
Questions about long dialogues that are made from fixed seeds (`bench/memory_talk.py`): hundreds of
turns, most of them never asked for; six kinds of questions, whose evidence is one turn or two.
Weights were chosen on one set of dialogues (`bench/memory_weights.py`); quality is of another, with
other seeds and about topics that were written for it alone, by somebody who knew neither Ortet's
code nor a score; no run had used it before the weights stood. Every system is given the same texts,
one memory a turn, and the same embedder (wordllama, 256 numbers); each runs in a process of its
own, one after the other, without a network. Questions are embedded before the time is taken.
Vectors and words of Ortet are found through `s.recall`, of which the text is looked up in the
dialogue. With 100 000 memories only what holds them in reasonable time is compared; all are with 10
000. The search alone, pruned and not, is on the 100 000, among which few dialogues are asked about.
""",
    memory_rows.ROWS,
    memory_tables.quality,
)
SERVE = Part(
    "serve",
    "The ways in",
    """\
`ortet serve` as its users have it, with tokens, on loopback; clients are connections that are kept,
each with a session of its own and one request at a time, all in one process that does as little as
it can. Client and server share the cores of this host. *Embedded* is the same call with the same
durability (WAL, `synchronous=FULL`) on a copy of the same store, in one process without HTTP: from
as many threads, each with a hub and a session of its own, as the server has it. What HTTP *adds* is
the p50 of requests less the p50 of calls, with as many at once and asked as often. *Paced* clients
rest between requests, as agents do, so that it is the way there and back. *Unpaced* ones ask again
at once, and both sides are as busy as they can be: time is then the number of clients over what the
cores do in a second, client and all, and most of it is waiting for others. What HTTP adds to that
cannot be less than what a route takes that does nothing: so that is measured too. A commit is timed
behind a `say`, which is not; a fork is paused at once, so that anybody may go on with it. The page
is opened in a new tab each time, until the first paint of anything, and until the first rows of the
tree are there; tasks are those of the page's main thread in a trace of Chromium.
""",
    serve_rows.ROWS,
    serve_tables.loads,
)
ADAPTERS = Part(
    "adapters",
    "Adapters",
    """\
What people's agents stand on already, and Ortet in its place: each in a process of its own, taking
turns, on one disk, with the same texts. A turn is `invoke` (`ainvoke`) of a LangGraph graph of one
node, from the message to the answer saved, two messages of 400 bytes each, durability as LangGraph
has it by default. InMemorySaver stores nothing and is what LangGraph itself costs; old copies of
messages, which it would keep by the gigabyte, are taken out of it between turns. SqliteSaver and
AsyncSqliteSaver write all messages anew at every step: they stop after 500 turns. A fork is
`update_state` of the checkpoint in the middle, which reads all messages up to there. What each
connection says of its durability stands beside it; SqliteStore and SQLiteSession are as their
constructors make them. Texts of stores are embedded by a function that costs next to nothing; where
SQLite loads no extensions SqliteStore has no vectors.
""",
    adapters_rows.ROWS,
)
SCALE = Part(
    "scale",
    "Stores in servers",
    """\
A store in PostgreSQL, S3 (SeaweedFS) and Valkey, which run on this host beside their clients and
share its cores with them; PostgreSQL syncs every commit. Each system is in a process of its own and
has a database of its own in the same server; they take turns. A turn is `invoke` of a LangGraph
graph of one node, two messages of 400 bytes each, durability as LangGraph has it by default. Sizes
are what the database grew by, with indexes and what updates left behind, and what lies in the
bucket. A step of DBOS and a bare insert hold the same text as a message. Appends at once: each of a
session of its own, without a pause, in threads of one process or of four; a bare insert is
psycopg's, in threads of one process, into one table; all of them in turn, three times. Clients and
PostgreSQL share the cores, so that the CPU that both take for an append says how many a second
there can be. The full store: sessions that the product made are copied to the others by COPY, with
ids and names of their own,
then `VACUUM (ANALYZE)`; sessions that were not opened before are opened in one hub, one of the
empty store and one of the full in turn, and everything that was said in them is read. Before a fork
there is a commit, not timed; that of DBOS is `fork_workflow` behind the last step, and what then
runs ends at once, not timed either.
""",
    scale_rows.ROWS,
)
PARTS = {part.key: part for part in (FILES, SESSION, LIVE, MEMORY, SERVE, ADAPTERS, SCALE)}


def line(sample: Sample) -> str:
    known = [row for part in PARTS.values() for row in part.rows]
    unit = next(row.unit for row in known if row.key == sample.row)
    return (
        f"{sample.row:<14} {sample.system:<24} p50 {number(sample.p50)} {unit}, "
        f"p95 {number(sample.p95)} {unit}, n={len(sample.values)} {sample.note}".rstrip()
    )


def render(part: Part, facts: dict[str, str], found: Found, *, quick: bool) -> str:
    host = table(["", ""], [[key, text] for key, text in facts.items()])
    return "\n".join(
        [
            f"## {part.title}\n",
            part.about + (QUICK if quick else ""),
            "### Asked and measured\n",
            table(["", "asked", "measured: p50 (p95)", ""], _targets(part, found)),
            "\n### Beside the peers\n",
            table(["", "system", "p50", "p95", "n", "ratio", ""], _comparison(part, found)),
            *_tables(part, found),
            "\n### Host\n",
            host,
            "",
        ]
    )


def merged(old: str, new: dict[str, str]) -> str:
    """The whole document: parts that were measured now, and of the others what it said before."""
    texts = {key: new.get(key) or _said(old, key) for key in PARTS}
    parts = [f"{_mark(key)}\n\n{text}" for key, text in texts.items() if text]
    return "\n".join([HEAD, *parts])


def _mark(key: str) -> str:
    return f"<!-- part: {key} -->"


def _said(old: str, key: str) -> str:
    found = re.search(rf"{re.escape(_mark(key))}\n+(.*?)(?=\n<!-- part: |\Z)", old, re.DOTALL)
    return found[1] if found else ""


def table(head: list[str], body: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _tables(part: Part, found: Found) -> list[str]:
    return [f"\n### {title}\n\n{table(head, body)}" for title, head, body in part.tables(found)]


def _targets(part: Part, found: Found) -> list[list[str]]:
    lines = []
    for row in part.rows:
        mine = [sample for sample in found if sample.row == row.key and _ours(sample)]
        if mine and row.listed:
            verdict = {True: "reached", False: "**missed**", None: ""}[row.verdict(found)]
            lines.append([row.title, row.asked, _cell(mine, row.unit), verdict])
    return lines


def _cell(samples: Found, unit: str) -> str:
    parts = []
    for sample in samples:
        name = f"{sample.system.removeprefix('ortet').strip(', ')}: " if len(samples) > 1 else ""
        tail = f" ({number(sample.p95)})" if len(sample.values) > 1 else ""
        parts.append(f"{name}**{number(sample.p50)} {unit}**{tail}")
    return "; ".join(parts)


def _comparison(part: Part, found: Found) -> list[list[str]]:
    lines = []
    for row in part.rows:
        samples = _beside(row, found) if row.listed else []
        ours = next((sample.p50 for sample in samples if _ours(sample)), None)
        for index, sample in enumerate(samples):
            title = f"{row.title}, {row.unit}" if index == 0 else ""
            ratio = "" if _ours(sample) or not ours else f"{number(sample.p50 / ours)}x"
            values = [number(sample.p50), number(sample.p95), str(len(sample.values))]
            lines.append([title, sample.system, *values, ratio, sample.note])
    return lines


def _beside(row: Row, found: Found) -> list[Sample]:
    samples = [sample for sample in found if sample.row == row.key]
    if row.key in ("inplace", "command"):  # git always commits in place, by a command
        samples += [s for s in found if s.row == "commit-1" and s.system.startswith("git")]
    return samples


def _ours(sample: Sample) -> bool:
    return sample.system.startswith("ortet")
