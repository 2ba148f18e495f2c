"""Taking a transcript into sessions: once, however often, and as far as it has got by now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from ortet.errors import Conflict, Invalid
from ortet.hub.hub import Hub
from ortet.integrations._shared.session_pool import session_name
from ortet.integrations.transcripts import claude_code, codex
from ortet.integrations.transcripts.batch import Batch, key_of
from ortet.integrations.transcripts.known import Known, Notes, known_of, pending
from ortet.integrations.transcripts.line_tree import NOWHERE, Chain, Entry, Node, chains
from ortet.integrations.transcripts.lines import Line, Transcript
from ortet.integrations.transcripts.locate import conversation_of
from ortet.integrations.transcripts.tool_calls import Doings
from ortet.journal.conversation.compaction import Summarise
from ortet.journal.conversation.text import one_line
from ortet.journal.events import Draft
from ortet.sessions.session import Session
from ortet.sessions.table import SessionRow
from ortet.sessions.writing.bulk_import import branch_off, go_back

_TITLE = 72
_GOAL = 200


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
    reader = tool_of(tool)
    with Transcript(path) as transcript:
        base = name or session_name(tool, conversation_of(tool, path))
        rows = [row for row in hub.sessions() if _is_of(row, agent, base)]
        notes = Notes()
        known = {row.name: known_of(hub.get(row.id), notes) for row in rows}
        keys = frozenset(key for one in known.values() for key in one.lines)
        nodes = reader.index(transcript.lines(), keys)
        found: list[Taken] = []
        for side, several in _by_side(nodes).items():
            whose = f"{base}/{session_name(f'agent-{side}')}" if side else base
            taking = Taking(hub, reader, transcript, several, name=whose, agent=agent)
            taking.known = known
            made = taking.foreseen() if dry_run else taking.take()
            found += [msgspec.structs.replace(made[0], parent=base if side else ""), *made[1:]]
    return found or [Taken(str(path), base, rest=transcript.rest)]


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
        self.known: dict[str, Known] = {}  # of each session by name, before anything is taken in
        self._parents: dict[int, Known] = {}  # of chains that others leave, once they are whole
        self._chains = chains(nodes)
        self._names: list[str] = []
        for number, chain in enumerate(self._chains):
            tail = "" if not number else f"/{_tail(nodes[chain.nodes[0]])}"
            self._names.append((self._names[chain.parent] if number else name) + tail)
        self._place = {nodes[at].key: n for n, c in enumerate(self._chains) for at in c.nodes}

    def foreseen(self) -> list[Taken]:
        """What `take` would do."""
        found = []
        for number, chain in enumerate(self._chains):
            known = self.known.get(self._names[number], Known())
            new = len(self._news(chain, known))
            found.append(self._taken(number, session=known.session, added=new))
        return found

    def _news(self, chain: Chain, known: Known) -> list[Node]:
        """Lines that were not taken in. What was erased does not come back: lines before the last
        that is known are no news then."""
        nodes = [self._nodes[at] for at in chain.nodes]
        if known.ends_erased:
            raise Conflict(
                "erased",
                f"what {self._name!r} had of this transcript was erased: to have it again, take it "
                "in under another --name",
            )
        if known.erased:
            there = [at for at, node in enumerate(nodes) if node.key in known.lines]
            nodes = nodes[max(there, default=-1) + 1 :]
        return [node for node in nodes if node.key not in known.lines]

    def take(self) -> list[Taken]:
        """Into the journals; each line once."""
        foreseen = self.foreseen()
        if not any(one.added for one in foreseen) and not self._left():
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
        session = self._reopened(self._name)
        if left := self._left():
            tail = self._names[self._place[left[0]]].removeprefix(f"{self._name}/")
            known = self.known[self._name]
            if not self._is_there(f"{self._name}/{tail}"):
                branch_off(session, known_of(session).last, tail).pause()
                self.known[f"{self._name}/{tail}"] = known
            go_back(session, max(known.start, known.lines[left[0]][0] - 1))
            self.known[self._name] = known_of(session)
        return session

    def _reopened(self, name: str) -> Session:
        """Ours to write from here on; what another process took in since we looked is known."""
        session = self._hub.session(name, agent=self._agent, environment="asked")
        known = self.known.get(name, Known())
        if any(key_of(event.data) for event in session.events(known.last)):
            self.known[name] = known_of(session)
        return session

    def _is_there(self, name: str) -> bool:
        return self._hub._minds().roll.is_taken(self._agent, name)

    def _left(self) -> list[str]:
        """Lines that the main conversation has, and that lie on a branch by now."""
        known = self.known.get(self._name, Known())
        return [key for key in known.lines if self._place.get(key, 0) > 0]

    def _branch(self, number: int, opened: Mapping[int, Session]) -> Session:
        name, chain = self._names[number], self._chains[number]
        if self._is_there(name):
            return self._reopened(name)
        parent = opened[chain.parent]
        if chain.parent not in self._parents:
            self._parents[chain.parent] = known_of(parent)
        known = self._parents[chain.parent]
        after = self._nodes[chain.after].key if chain.after >= 0 else ""
        _, seq = known.lines.get(after, (0, known.start))
        branch = branch_off(parent, seq, name.removeprefix(f"{parent.name}/"))
        lines = {key: span for key, span in known.lines.items() if span[1] <= seq}
        self.known[name] = Known(branch.id, lines, {}, known.start, seq)
        return branch

    def _append(self, number: int, session: Session) -> Taken:
        known = self.known.get(session.name, Known())
        chain, batch = self._chains[number], Batch(session, self._tool.name)
        reader = self._tool.reader(Doings(pending(session)), known.around)
        title, news = "", self._news(chain, known)
        for node in news:
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
            added=len(news),
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


def _tail(node: Node) -> str:
    """The name of the branch that a line begins, whatever its key is made of: no number, which
    forks have."""
    return f"left-{blake2b(node.key.encode(), digest_size=5).hexdigest()}"
