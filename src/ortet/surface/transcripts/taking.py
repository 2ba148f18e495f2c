"""Taking a transcript into sessions: once, however often, and as far as it has got by now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from ortet.errors import Invalid
from ortet.journal.compact import Summarise
from ortet.journal.events import Draft, Event
from ortet.journal.text import one_line
from ortet.session.hub import Hub
from ortet.session.lifecycle import SessionRow
from ortet.session.retelling import branch_off, go_back
from ortet.session.session import Session
from ortet.session.view import View
from ortet.surface.lent import session_name
from ortet.surface.transcripts import claude_code, codex
from ortet.surface.transcripts.batch import Batch, key_of
from ortet.surface.transcripts.doings import Doings, Pending
from ortet.surface.transcripts.lines import Line, Transcript
from ortet.surface.transcripts.nodes import NOWHERE, Entry, Node, chains
from ortet.surface.transcripts.places import conversation_of

_TITLE = 72
_GOAL = 200
_OPEN = ("begun", "unsettled")
_DIGITS = 8


class Reader(Protocol):
    def entry(self, node: Node, data: Any) -> Entry | None: ...


class Tool(msgspec.Struct, frozen=True):
    """Whose transcripts can be taken in."""

    name: str
    context: str
    index: Callable[[Iterable[tuple[Line, Any]], frozenset[str]], list[Node]]
    reader: Callable[[Doings, Mapping[str, Any]], Reader]


TOOLS: Mapping[str, Tool] = MappingProxyType(
    {one.TOOL: Tool(one.TOOL, one.CONTEXT, one.index, one.Reader) for one in (claude_code, codex)}
)


class Taken(msgspec.Struct, frozen=True):
    """What became of a transcript: the session, and how much of it is new. `unknown` lines are kept
    as they are; `rest`: bytes of a last line that is not whole yet. `parent` is the session that a
    branch leaves, or that an agent works for."""

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


class Known(msgspec.Struct, frozen=True):
    """What a session has of a transcript: of each line its first and last event."""

    lines: dict[str, tuple[int, int]]
    around: dict[str, Any]
    start: int  # the last event before all of them


def tool_of(name: str) -> Tool:
    if name in TOOLS:
        return TOOLS[name]
    raise Invalid("bad_format", f"{name!r}: transcripts can be had from {', '.join(TOOLS)}")


def take(
    hub: Hub,
    tool: str,
    path: Path,
    *,
    name: str = "",
    agent: str = "default",
    dry_run: bool = False,
) -> list[Taken]:
    """Take a transcript in: its conversation into one session, each branch that was left into a
    fork of it, each agent that worked for it into one of its own. What was taken in before is not
    taken in again, so that a transcript that grows can be had as often as one likes."""
    with Transcript(path) as transcript:
        base = name or session_name(tool, conversation_of(tool, path))
        views = [hub.get(row.id) for row in hub.sessions() if _is_of(row, agent, base)]
        known = frozenset(key for view in views for key in known_of(view).lines)
        nodes = tool_of(tool).index(transcript.lines(), known)
        found: list[Taken] = []
        for side, several in _by_side(nodes).items():
            whose = f"{base}/{session_name(f'agent-{side}')}" if side else base
            taking = Taking(hub, tool_of(tool), transcript, several, name=whose, agent=agent)
            made = taking.foreseen() if dry_run else taking.take()
            found += [msgspec.structs.replace(made[0], parent=base if side else ""), *made[1:]]
    return found


def _is_of(row: SessionRow, agent: str, base: str) -> bool:
    return row.agent == agent and (row.name == base or row.name.startswith(f"{base}/"))


def _by_side(nodes: Sequence[Node]) -> dict[str, list[Node]]:
    """The lines of each agent, with the numbers that they have among their own."""
    found: dict[str, list[Node]] = {}
    numbers: list[int] = []
    for node in nodes:
        several = found.setdefault(node.side, [])
        numbers.append(len(several))
        parent = numbers[node.parent] if node.parent >= 0 else NOWHERE
        several.append(msgspec.structs.replace(node, parent=parent))
    return found


def known_of(view: View) -> Known:
    """Read from its journal: that, and nothing beside it, says what was taken in."""
    lines: dict[str, tuple[int, int]] = {}
    around: dict[str, Any] = {}
    start, now = 0, ""
    for event in view.events():
        if not event.seq:
            continue
        if key := key_of(event.data):
            now = key
            lines[now] = (event.seq, event.seq)
        elif now and not _is_ours(event):
            lines[now] = (lines[now][0], event.seq)
        elif not now:
            start = event.seq
        if event.kind.endswith(".context"):
            around |= {name: one for name, one in event.data.items() if name != "line"}
    return Known(lines, around, start)


def _is_ours(event: Event) -> bool:
    """What a session does by itself between two lines."""
    return event.kind in ("lifecycle", "warning", "environment", "compaction", "episode")


class Taking:
    """One conversation of a transcript, with the branches that were left."""

    def __init__(
        self,
        hub: Hub,
        tool: Tool,
        transcript: Transcript,
        nodes: Sequence[Node],
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
        self._chains = chains(nodes)
        self._names: list[str] = []
        for number, chain in enumerate(self._chains):
            tail = "" if not number else f"/{_tail(nodes[chain.nodes[0]])}"
            self._names.append((self._names[chain.parent] if number else name) + tail)
        self._place = {nodes[at].key: n for n, c in enumerate(self._chains) for at in c.nodes}

    def foreseen(self) -> list[Taken]:
        """What `take` would do."""
        rows = {row.name: row for row in self._hub.sessions() if row.agent == self._agent}
        found = []
        for number, chain in enumerate(self._chains):
            row = rows.get(self._names[number])
            known = known_of(self._hub.get(row.id)).lines if row is not None else {}
            new = sum(self._nodes[at].key not in known for at in chain.nodes)
            found.append(self._taken(number, session=row.id if row is not None else "", added=new))
        return found

    def take(self) -> list[Taken]:
        """Into the journals; each line once."""
        foreseen = self.foreseen()
        if not any(one.added for one in foreseen) and not self._moved(foreseen[0]):
            return foreseen
        opened: dict[int, Session] = {}
        found: list[Taken] = []
        try:
            for number in range(len(self._chains)):
                session = self._open() if not number else self._branch(number, opened)
                opened[number] = session
                found.append(self._append(number, session))
        finally:
            for session in opened.values():
                session.pause()
        return found

    def _open(self) -> Session:
        """The main conversation, where the transcript goes on with it: what was left since the last
        time stays, as a fork of its own."""
        session = self._hub.session(self._name, agent=self._agent, environment="asked")
        known = known_of(session)
        if left := self._left(known):
            tail = self._names[self._place[left[0]]].removeprefix(f"{self._name}/")
            with self._hub.writing():
                if not self._hub._minds().roll.is_taken(self._agent, f"{self._name}/{tail}"):
                    branch_off(session, session.line.tip().seq, tail).pause()
            first = known.lines[left[0]][0]
            go_back(session, max(known.start, first - 1))
        return session

    def _left(self, known: Known) -> list[str]:
        """Lines that the main conversation has, and that lie on a branch by now."""
        return [key for key in known.lines if self._place.get(key, 0) > 0]

    def _moved(self, main: Taken) -> bool:
        return bool(main.session) and bool(self._left(known_of(self._hub.get(main.session))))

    def _branch(self, number: int, opened: Mapping[int, Session]) -> Session:
        name, chain = self._names[number], self._chains[number]
        if self._hub._minds().roll.is_taken(self._agent, name):
            return self._hub.session(name, agent=self._agent, environment="asked")
        parent = opened[chain.parent]
        known = known_of(parent)
        after = self._nodes[chain.after].key if chain.after >= 0 else ""
        _, seq = known.lines.get(after, (0, known.start))
        return branch_off(parent, seq, name.removeprefix(f"{parent.name}/"))

    def _append(self, number: int, session: Session) -> Taken:
        known = known_of(session)
        chain, batch = self._chains[number], Batch(session, self._tool.name)
        reader = self._tool.reader(Doings(_pending(session)), known.around)
        title, added = "", 0
        for at in chain.nodes:
            node = self._nodes[at]
            if node.key in known.lines:
                continue
            added += 1
            entry = reader.entry(node, self._transcript.data(node.line))
            if entry is not None and (entry.summary or entry.prompt):
                batch.flush()
                if entry.summary:
                    session.compact(0, _told(entry.summary))
                elif session.goal:
                    session.commit(title or "before")
                else:
                    goal = Draft("goal", {"text": one_line(entry.prompt, _GOAL)})
                    entry = msgspec.structs.replace(entry, drafts=[*entry.drafts, goal])
                title = one_line(entry.prompt, _TITLE) or title
            batch.add(
                node.key,
                entry,
                partial(self._transcript.raw, node.line),
                size=node.line.size,
                paid=node.paid,
            )
        batch.flush()
        commit = session.commit(title or f"from {self._tool.name}")
        count = batch.count
        return self._taken(
            number,
            session=session.id,
            added=added,
            unknown=count["unknown"],
            messages=count["message"],
            thoughts=count["thought"],
            deeds=count["begun"],
            files=sorted(batch.files),
            spent=batch.spent,
            commit=commit.oid,
        )

    def _taken(self, number: int, **more: Any) -> Taken:
        chain = self._chains[number]
        return Taken(
            path=str(self._transcript.path),
            name=self._names[number],
            parent=self._names[chain.parent] if number else "",
            lines=len(chain.nodes),
            rest=0 if number else self._transcript.rest,
            **more,
        )


def _told(summary: str) -> Summarise:
    return lambda _: summary


def _pending(session: Session) -> Pending:
    def find() -> dict[str, Mapping[str, Any]]:
        begun = [effect.begun for effect in session.mind.effects if effect.state in _OPEN]
        events = [event for seq in begun for event in session.events(seq - 1, seq)]
        return {str(event.data.get("call", "")): event.data for event in events}

    return find


def _tail(node: Node) -> str:
    """The name of the branch that a line begins: no number, which forks have."""
    return f"left-{node.key.removeprefix('#')[:_DIGITS]}"
