"""Imports a transcript into sessions; importing it again adds only new lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import msgspec

from ortet.errors import Conflict, Invalid
from ortet.hub.hub import Hub
from ortet.integrations._shared.session_pool import session_name
from ortet.integrations.transcripts import claude_code, codex
from ortet.integrations.transcripts.batch import ImportBatch, key_of
from ortet.integrations.transcripts.line_tree import (
    NO_PARENT,
    ImportedLine,
    LineChain,
    LineNode,
    chains,
)
from ortet.integrations.transcripts.lines import Transcript, TranscriptLine
from ortet.integrations.transcripts.locate import conversation_of
from ortet.integrations.transcripts.tool_calls import LoadPendingEffects, ToolCallEffects
from ortet.journal.conversation.compaction import Summarise
from ortet.journal.conversation.text import one_line
from ortet.journal.events import Draft, Event
from ortet.journal.kinds.registry import kind_of
from ortet.sessions.reader import SessionReader
from ortet.sessions.session import Session
from ortet.sessions.table import SessionRow
from ortet.sessions.writing.bulk_import import fork_named_after_event, restore_after_event

# Reads from the journal which lines of a transcript a session already has.
#
# Nothing else records this.

_OPEN = ("begun", "unsettled")


class ImportProgress(msgspec.Struct, frozen=True):
    """The lines that a session has, each with its first and last event."""

    session: str = ""
    lines: dict[str, tuple[int, int]] = {}
    around: dict[str, Any] = {}
    start: int = 0  # last event before the first line
    last: int = 0  # last event of all
    erased: bool = False  # Some events were erased, so their lines are unknown.
    ends_erased: bool = False


class LineEvent(NamedTuple):
    """The fields of an event that the import needs."""

    seq: int
    key: str
    is_automatic: bool
    erased: bool
    context: dict[str, Any]


class LineEventCache:
    """Reads each timeline once, however many forks share it."""

    def __init__(self) -> None:
        self._read: dict[str, list[LineEvent]] = {}

    def read_events(self, view: SessionReader) -> Iterator[LineEvent]:
        spans = view.internals.event_log.timeline_spans()
        if not spans or spans[0].after:  # The earlier events were written on another host.
            yield from map(_line_event, view.internals.event_log.events())
            return
        for span in spans:
            known = self._read.setdefault(span.timeline, [])
            reached = span.after + len(known)
            if reached < span.upto:
                known += map(_line_event, view.internals.event_log.events(reached, span.upto))
            yield from islice(known, span.upto - span.after)


def _line_event(event: Event) -> LineEvent:
    data, around = event.data, dict[str, Any]()
    if event.kind.endswith(".context"):
        around = {name: one for name, one in data.items() if name != "line"}
    return LineEvent(event.seq, key_of(data), _is_automatic(event), event.erased, around)


def read_progress(view: SessionReader, cache: LineEventCache | None = None) -> ImportProgress:
    """Read from the journal what was imported."""
    lines: dict[str, tuple[int, int]] = {}
    around: dict[str, Any] = {}
    start, now, last = 0, "", 0
    erased = ends_erased = False
    view.events(0, 0)  # In an open session this makes pending events durable.
    for note in (cache or LineEventCache()).read_events(view):
        last = note.seq
        erased, ends_erased = erased or note.erased, ends_erased or note.erased
        if note.key:
            now, ends_erased = note.key, False
            lines[now] = (note.seq, note.seq)
        elif now and not note.is_automatic:
            lines[now] = (lines[now][0], note.seq)
        elif not now:
            start = note.seq
        around |= note.context
    return ImportProgress(view.id, lines, around, start, last, erased, ends_erased)


def _is_automatic(event: Event) -> bool:
    """Return True for an event that a session writes automatically between two lines."""
    return kind_of(event.kind).automatic


def pending_effects(session: SessionReader) -> LoadPendingEffects:
    def find() -> dict[str, Mapping[str, Any]]:
        begun = [
            effect.begun for effect in session.internals.state.effects if effect.state in _OPEN
        ]
        events = [event for seq in begun for event in session.events(seq - 1, seq)]
        return {str(event.data.get("call", "")): event.data for event in events}

    return find


_MAX_TITLE_CHARS = 72
_MAX_GOAL_CHARS = 200


class TranscriptReader(Protocol):
    def translate(self, node: LineNode, data: Any) -> ImportedLine | None: ...


class TranscriptTool(msgspec.Struct, frozen=True):
    """A tool whose transcripts can be imported."""

    name: str
    context: str
    index: Callable[[Iterable[tuple[TranscriptLine, Any]], frozenset[str]], list[LineNode]]
    reader: Callable[[ToolCallEffects, Mapping[str, Any]], TranscriptReader]


TOOLS: Mapping[str, TranscriptTool] = MappingProxyType(
    {
        claude_code.TOOL: TranscriptTool(
            claude_code.TOOL,
            claude_code.CONTEXT,
            claude_code.index,
            claude_code.ClaudeCodeReader,
        ),
        codex.TOOL: TranscriptTool(codex.TOOL, codex.CONTEXT, codex.index, codex.CodexReader),
    }
)


class ImportResult(msgspec.Struct, frozen=True):
    """The result of importing one conversation.

    `unknown` lines are stored unchanged. `rest` is the size of an incomplete last line. `parent` is
    the session that a branch left, or that a subagent works for.
    """

    path: str
    name: str
    session: str = ""
    parent: str = ""
    lines: int = 0
    added: int = 0
    unknown: int = 0
    messages: int = 0
    thoughts: int = 0
    deeds: int = 0
    files: list[str] = []
    spent: dict[str, float] = {}
    rest: int = 0
    commit: str = ""


def tool_of(name: str) -> TranscriptTool:
    if name in TOOLS:
        return TOOLS[name]
    raise Invalid("bad_format", f"{name!r}: transcripts can be had from {', '.join(TOOLS)}")


def import_transcript(
    hub: Hub,
    tool: str,
    path: Path,
    *,
    name: str = "",
    agent: str = "default",
    dry_run: bool = False,
) -> list[ImportResult]:
    """Import a transcript and return one result for each session.

    The conversation becomes one session. Each abandoned branch becomes a fork of it, and each
    subagent a session of its own. Lines that were imported before are skipped, so a growing
    transcript can be imported repeatedly.
    """
    reader = tool_of(tool)
    with Transcript(path) as transcript:
        base = name or session_name(tool, conversation_of(tool, path))
        rows = [row for row in hub.sessions() if _is_of(row, agent, base)]
        notes = LineEventCache()
        known = {row.name: read_progress(hub.get(row.id), notes) for row in rows}
        keys = frozenset(key for one in known.values() for key in one.lines)
        nodes = reader.index(transcript.lines(), keys)
        results: list[ImportResult] = []
        for side, several in _group_by_agent(nodes).items():
            whose = f"{base}/{session_name(f'agent-{side}')}" if side else base
            taking = ConversationImport(hub, reader, transcript, several, name=whose, agent=agent)
            taking.progress = known
            agent_results = taking.preview() if dry_run else taking.run()
            results += [
                msgspec.structs.replace(agent_results[0], parent=base if side else ""),
                *agent_results[1:],
            ]
    return results or [ImportResult(str(path), base, rest=transcript.incomplete_bytes)]


def _is_of(row: SessionRow, agent: str, base: str) -> bool:
    return row.agent == agent and (row.name == base or row.name.startswith(f"{base}/"))


def _group_by_agent(nodes: Sequence[LineNode]) -> dict[str, list[LineNode]]:
    """Group the lines by agent, with parent numbers relative to the group."""
    groups: dict[str, list[LineNode]] = {}
    numbers: list[int] = []
    for node in nodes:
        several = groups.setdefault(node.side, [])
        numbers.append(len(several))
        parent = numbers[node.parent] if node.parent >= 0 else NO_PARENT
        several.append(msgspec.structs.replace(node, parent=parent))
    return groups


class ConversationImport:
    """The import of one conversation of a transcript, with its abandoned branches."""

    def __init__(
        self,
        hub: Hub,
        tool: TranscriptTool,
        transcript: Transcript,
        nodes: Sequence[LineNode],
        *,
        name: str,
        agent: str,
    ) -> None:
        self._hub = hub
        self._tool = tool
        self._transcript = transcript
        self._nodes = nodes
        self._name = name
        self._agent = agent
        self.progress: dict[str, ImportProgress] = {}  # by session name, before the import
        self._parent_progress: dict[
            int, ImportProgress
        ] = {}  # by number of a chain that others branch from, once it is complete
        self._chains = chains(nodes)
        self._names: list[str] = []
        for number, chain in enumerate(self._chains):
            tail = "" if not number else f"/{_tail(nodes[chain.nodes[0]])}"
            self._names.append((self._names[chain.parent] if number else name) + tail)
        self._chain_by_key = {
            nodes[at].key: n for n, c in enumerate(self._chains) for at in c.nodes
        }

    def preview(self) -> list[ImportResult]:
        """Return what `run` would do."""
        results = []
        for number, chain in enumerate(self._chains):
            known = self.progress.get(self._names[number], ImportProgress())
            new = len(self._new_nodes(chain, known))
            results.append(self._result(number, session=known.session, added=new))
        return results

    def _new_nodes(self, chain: LineChain, progress: ImportProgress) -> list[LineNode]:
        """Return the lines that were not imported.

        Erased lines are not imported again: after an erasure, only lines after the last known one
        are new.
        """
        nodes = [self._nodes[at] for at in chain.nodes]
        if progress.ends_erased:
            raise Conflict(
                "erased",
                f"what {self._name!r} had of this transcript was erased: to have it again, take it "
                "in under another --name",
            )
        if progress.erased:
            there = [at for at, node in enumerate(nodes) if node.key in progress.lines]
            nodes = nodes[max(there, default=-1) + 1 :]
        return [node for node in nodes if node.key not in progress.lines]

    def run(self) -> list[ImportResult]:
        """Import each new line once."""
        foreseen = self.preview()
        if not any(one.added for one in foreseen) and not self._abandoned_lines():
            return foreseen
        opened: dict[int, Session] = {}
        results: list[ImportResult] = []
        try:
            for number in range(len(self._chains)):
                session = self._open() if not number else self._branch(number, opened)
                opened[number] = session
                results.append(self._append(number, session))
        finally:
            for session in opened.values():
                session.pause()
        return results

    def _open(self) -> Session:
        """Open the main conversation at the point where the transcript continues.

        What was abandoned since the last import is kept as a fork.
        """
        session = self._reopened(self._name)
        if left := self._abandoned_lines():
            tail = self._names[self._chain_by_key[left[0]]].removeprefix(f"{self._name}/")
            known = self.progress[self._name]
            if not self._session_exists(f"{self._name}/{tail}"):
                fork_named_after_event(session, read_progress(session).last, tail).pause()
                self.progress[f"{self._name}/{tail}"] = known
            restore_after_event(session, max(known.start, known.lines[left[0]][0] - 1))
            self.progress[self._name] = read_progress(session)
        return session

    def _reopened(self, name: str) -> Session:
        """Open the session for writing and read what another process has imported since."""
        session = self._hub.session(name, agent=self._agent, environment="asked")
        known = self.progress.get(name, ImportProgress())
        if any(key_of(event.data) for event in session.events(known.last)):
            self.progress[name] = read_progress(session)
        return session

    def _session_exists(self, name: str) -> bool:
        return self._hub.internals.session_manager.table.is_taken(self._agent, name)

    def _abandoned_lines(self) -> list[str]:
        """Return the imported lines of the main conversation that are now on a branch."""
        known = self.progress.get(self._name, ImportProgress())
        return [key for key in known.lines if self._chain_by_key.get(key, 0) > 0]

    def _branch(self, number: int, opened: Mapping[int, Session]) -> Session:
        name, chain = self._names[number], self._chains[number]
        if self._session_exists(name):
            return self._reopened(name)
        parent = opened[chain.parent]
        if chain.parent not in self._parent_progress:
            self._parent_progress[chain.parent] = read_progress(parent)
        known = self._parent_progress[chain.parent]
        after = self._nodes[chain.after].key if chain.after >= 0 else ""
        _, seq = known.lines.get(after, (0, known.start))
        branch = fork_named_after_event(parent, seq, name.removeprefix(f"{parent.name}/"))
        lines = {key: span for key, span in known.lines.items() if span[1] <= seq}
        self.progress[name] = ImportProgress(branch.id, lines, {}, known.start, seq)
        return branch

    def _append(self, number: int, session: Session) -> ImportResult:
        known = self.progress.get(session.name, ImportProgress())
        chain, batch = self._chains[number], ImportBatch(session, self._tool.name)
        reader = self._tool.reader(ToolCallEffects(pending_effects(session)), known.around)
        title, news = "", self._new_nodes(chain, known)
        for node in news:
            entry = reader.translate(node, self._transcript.data(node.line))
            if entry is not None and (entry.summary or entry.prompt):
                batch.flush()
                if entry.summary:
                    session.compact(0, _fixed_summary(entry.summary))
                elif session.goal:
                    session.commit(title or "before")
                else:
                    goal = Draft("goal", {"text": one_line(entry.prompt, _MAX_GOAL_CHARS)})
                    entry = msgspec.structs.replace(entry, drafts=[*entry.drafts, goal])
                title = one_line(entry.prompt, _MAX_TITLE_CHARS) or title
            batch.add(
                node.key,
                entry,
                partial(self._transcript.raw, node.line),
                size=node.line.size,
                model_usage=node.paid,
            )
        batch.flush()
        commit = session.commit(title or f"from {self._tool.name}")
        count = batch.event_counts
        return self._result(
            number,
            session=session.id,
            added=len(news),
            unknown=count["unknown"],
            messages=count["message"],
            thoughts=count["thought"],
            deeds=count["begun"],
            files=sorted(batch.files),
            spent=batch.spent,
            commit=commit.oid,
        )

    def _result(self, number: int, **more: Any) -> ImportResult:
        chain = self._chains[number]
        return ImportResult(
            path=str(self._transcript.path),
            name=self._names[number],
            parent=self._names[chain.parent] if number else "",
            lines=len(chain.nodes),
            rest=0 if number else self._transcript.incomplete_bytes,
            **more,
        )


def _fixed_summary(summary: str) -> Summarise:
    return lambda _: summary


def _tail(node: LineNode) -> str:
    """Return the name of the branch that a line starts: a hash, never a number as forks have."""
    return f"left-{blake2b(node.key.encode(), digest_size=5).hexdigest()}"
