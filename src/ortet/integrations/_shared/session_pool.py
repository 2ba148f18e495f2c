"""Sessions for a framework that asks from any thread or event loop: lent, and had back when asked.

How an adapter uses it (see `Lent` for each verb):

    self._lent = Lent(hub, agent=agent)
    name = session_name(user_id, conversation_id)       # any foreign ids, always the same number

    with self._lent.writing(name, goal="…") as session:  # made where it is new
        session.say_all([...])                           # one write: all or nothing, durable
    with self._lent.reading(name) as view:               # NotFound where there is none
        messages = view.messages()

    async def add(self, ...): await asyncio.to_thread(self._add, ...)   # async methods

A block is short: no other thread of this process uses any session of this Lent meanwhile. What is
read in a block is copied out of it. Between blocks the session stays open here, so that the next
costs nothing; another process that asks for it gets it as soon as no block is entered and nothing
is held (`hold`), without an event in the journal. A lease says who writes now, not who wrote last:
who needs to know that nobody else did since then looks inside the block.
"""

from __future__ import annotations

import atexit
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import RLock, Thread, current_thread
from typing import Any

from ortet._util.fork_safety import begin_in_child
from ortet.config.environment import open_hub
from ortet.errors import Conflict, Invalid, OrtetError, Refused
from ortet.hub.hub import Hub
from ortet.integrations._shared.foreign import session_name
from ortet.integrations._shared.lentkeeper import (
    Asking,
    Kept,
    how_opened,
    keep,
    later,
    spoils,
    sum_up,
    weakly,
)
from ortet.journal.event_log import Line
from ortet.sessions.history.participants import line_of
from ortet.sessions.profiles import Manner
from ortet.sessions.reader import View
from ortet.sessions.session import Session
from ortet.sessions.table import SessionRow, check_agent, no_session
from ortet.sessions.writing.lease_handover import WANTED, ask_for, hand_over, left, take_up, wanted

__all__ = ["Lent", "session_name"]

_POLITE = 0.02
"""Seconds that one who gave a session away waits before it asks for it again."""


class Lent:
    """Sessions of one agent of the store that `hub` has open, which is opened once more: any thread
    may use it. Closed with `hub`, or by `close`.

    `patience`, `linger` and `turn` are in seconds: how long `writing` waits for another process,
    how long a session stays open that nobody uses, how long it is ours before another gets it.
    `most`: sessions that stay open. In a forked child it begins anew.
    """

    def __init__(
        self,
        hub: Hub,
        *,
        agent: str = "default",
        patience: float = 5.0,
        linger: float = 30.0,
        turn: float = 0.1,
        most: int = 64,
    ) -> None:
        self.agent = check_agent(agent)
        self._patience, self._linger, self._turn, self._most = patience, linger, turn, most
        self._how, self._url = how_opened(hub), hub.url
        self._anew()
        self._left_behind: list[Any] = []  # what a child must neither close nor collect
        self._at_exit = weakly(self.close)
        atexit.register(self._at_exit)
        self._closing = hub.closing
        self._closing.append(self._at_exit)
        begin_in_child(self._forked)

    def __del__(self) -> None:
        if not hasattr(self, "_closing") or self._closed:
            return
        # It may be collected in the middle of whatever this thread does, a write to the same store
        # too, which it would wait for without end.
        later(self.close)

    def _anew(self) -> None:
        self._lock = RLock()
        self._own: Hub | None = None
        self._kept: dict[str, Kept] = {}  # by name, the one used last at the end
        self._held: Counter[str] = Counter()
        self._entered: Counter[str] = Counter()
        self._gave: dict[str, float] = {}
        self._keeper: Thread | None = None
        self._closed = False

    def _forked(self) -> None:
        closed = self._closed
        self._left_behind.append((self._own, self._kept))
        self._anew()
        self._closed = closed

    # what an adapter calls

    @contextmanager
    def writing(self, name: str, *, create: bool = True, **options: Any) -> Iterator[Session]:
        """The session, opened and leased; no other thread has it during the block. Where it is new
        it is begun with `options`, which are those of `hub.session`, or NotFound("no_session")
        unless `create`. Of one there is, `durability`, `commit` and `profile` are as it is opened.

        Refused("lease_held") when another process keeps it, Conflict("session_closed").
        """
        kept = self._enter(name, create=create, options=options)
        lock, session = self._lock, kept.session
        try:
            yield session
        except BaseException as error:
            if spoils(error):
                self._leave(name, kept)
            raise
        finally:
            try:
                self._after(name, kept)
            finally:
                lock.release()

    @contextmanager
    def reading(self, name: str) -> Iterator[View]:
        """The session to read, whoever writes to it: as of now. NotFound("no_session")."""
        with self.hub() as hub:
            held = self.held(name)
            yield held if held is not None else hub._minds().get(self._row(hub, name).id)

    @contextmanager
    def hub(self) -> Iterator[Hub]:
        """The store, for what is not done in one session; no other thread uses it meanwhile."""
        with self._lock:
            yield self._opened()

    def held(self, name: str) -> Session | None:
        """One that is open here, and ours as the catalog knows it. Inside `with lent.hub()`."""
        kept = self._kept.get(name)
        if kept is None or not kept.is_ours():
            return None
        kept.used = time.monotonic()
        return kept.session

    def journal(self, name: str) -> tuple[SessionRow, Line, int | None] | None:
        """The events of a session alone, for who knows what they add up to: nothing is folded.
        With the number of the last one where that is known here. Inside `with lent.hub()`."""
        hub = self._opened()
        if (held := self.held(name)) is not None:
            return held.row, held.line, held._ledger.tip.seq
        row = hub._minds().roll.find(self.agent, name)
        return None if row is None else (row, line_of(hub._minds(), row)[0], None)

    def exists(self, name: str) -> bool:
        with self.hub() as hub:
            return name in self._kept or hub._minds().roll.is_taken(self.agent, name)

    def names(self, prefix: str = "") -> list[str]:
        """Of this agent's sessions, in order: those that begin so."""
        found: list[str] = []
        with self.hub() as hub:
            start = after = f"{self.agent}/{prefix}"
            if prefix and hub.catalog.row("session-name", start):
                found.append(prefix)
            while page := hub.catalog.rows("session-name", after):
                keys = [row.key for row in page if row.key.startswith(start)]
                found += [key.partition("/")[2] for key in keys]
                if len(keys) < len(page):
                    break
                after = page[-1].key
        return found

    def hold(self, name: str) -> None:
        """Something is under way in this session, between blocks: no other process gets it. Each
        `hold` needs its `release`."""
        with self._lock:
            self._held[name] += 1

    def release(self, name: str) -> None:
        with self._lock:
            self._held[name] -= 1
            if self._held[name] <= 0:
                del self._held[name]
            kept = self._kept.get(name)
            if kept is not None:
                self._let_go_if_wanted(name, kept)

    @contextmanager
    def aside(self, name: str) -> Iterator[tuple[Hub, SessionRow]]:
        """For what is done to a session that nobody has open: archive it, erase it. It is let go
        here before, and asked for. NotFound("no_session")."""
        with self.hub() as hub:
            if (kept := self._kept.get(name)) is not None:
                self._leave(name, kept)
            row = self._row(hub, name)
            ask_for(hub.signal, row.id)
            yield hub, row

    def let_go(self, name: str) -> None:
        """Another process may have it at once."""
        with self._lock:
            if (kept := self._kept.get(name)) is not None:
                self._leave(name, kept)

    def close(self) -> None:
        """Let every session go; what is asked of it from now on is Invalid("closed")."""
        atexit.unregister(self._at_exit)
        with suppress(ValueError):
            self._closing.remove(self._at_exit)
        with self._lock:
            self._closed = True
            hub, self._own = self._own, None
            kept, self._kept = self._kept, {}
            keeper, self._keeper = self._keeper, None
            for name, one in kept.items():
                with suppress(OrtetError):  # a lease that cannot be given back runs out by itself
                    self._hand_over(name, one)
            if hub is not None:
                with suppress(OSError, OrtetError):
                    hub.signal.notify(WANTED)  # which wakes the keeper
                hub.close()
        if keeper is not None and keeper is not current_thread():
            keeper.join(1.0)

    # inside

    def _opened(self) -> Hub:
        if self._closed:
            raise Invalid(
                "closed", "this hub was closed: open it again, and make the adapter with it"
            )
        if self._own is None:
            self._own = open_hub(self._url, **self._how)
            self._own.lends = True
        return self._own

    def _row(self, hub: Hub, name: str) -> SessionRow:
        row = hub._minds().roll.find(self.agent, name)
        if row is None:
            raise no_session(name)
        return row

    def _enter(self, name: str, *, create: bool, options: dict[str, Any]) -> Kept:
        """The session, with the lock taken, which is not kept while another process is waited
        for."""
        self._be_polite(name)
        with Asking(time.monotonic() + self._patience) as asking:
            while True:
                lock = self._lock
                lock.acquire()
                try:
                    hub = self._opened()
                    kept = self._kept.get(name)
                    if kept is not None and not kept.is_ours(to_write=True):
                        self._leave(name, kept, lost=True)
                        kept = None
                    if kept is None:
                        kept = self._keep(name, self._open(hub, name, create, options))
                    self._entered[name] += 1
                    return kept
                except BaseException as error:
                    try:
                        wait = self._waiter(error, name, asking)
                    finally:
                        lock.release()
                    if wait is None:
                        raise
                wait()

    def _waiter(self, error: BaseException, name: str, asking: Asking) -> Callable[[], None] | None:
        """How to wait for a session that another process has; None where that is no use."""
        hub = self._own
        if not isinstance(error, Refused) or error.kind != "lease_held" or not hub:
            return None
        row = hub._minds().roll.find(self.agent, name)
        return None if row is None else asking.waiter(hub, row.id)

    def _open(self, hub: Hub, name: str, create: bool, options: dict[str, Any]) -> Session:
        minds = hub._minds()
        row = minds.roll.find(self.agent, name)
        if row is None:
            if not create:
                raise no_session(name)
            try:
                return hub.session(name, agent=self.agent, **options)
            except Conflict as error:
                row = minds.roll.find(self.agent, name)
                if error.kind != "row_moved" or row is None:
                    raise
        manner = Manner(**{key: options[key] for key in _EACH_TIME if key in options})
        place = hub._place(options.get("workspace"), None, "auto", limits=None, network=None)
        return take_up(minds, row, place=place, manner=manner)

    def _keep(self, name: str, session: Session) -> Kept:
        kept = self._kept[name] = Kept(session)
        for other in list(self._kept):
            if len(self._kept) <= self._most:
                break
            if other != name and not self._entered[other] and not self._held[other]:
                self._leave(other, self._kept[other])
        if self._keeper is None:
            run = weakref.WeakMethod(self._look_after)
            assert self._own is not None
            args = (run, self._own, self._linger / 4)
            self._keeper = Thread(target=keep, args=args, name="ortet-lent", daemon=True)
            self._keeper.start()
        return kept

    def _after(self, name: str, kept: Kept) -> None:
        """A block was left."""
        kept.used = time.monotonic()
        self._entered[name] -= 1
        if not self._entered[name]:
            del self._entered[name]
        if self._kept.get(name) is not kept:
            return
        self._kept[name] = self._kept.pop(name)
        opened = kept.session._sessions._open
        if len(opened) > len(self._kept):  # forks that were made in the block
            ours = {id(one.session) for one in self._kept.values()}
            for fork in [one for one in opened if id(one) not in ours]:
                with suppress(OrtetError):
                    fork.pause()
        if kept.session.holding.ended:
            self._leave(name, kept)
        else:
            self._let_go_if_wanted(name, kept)

    # letting go

    def _is_busy(self, name: str, kept: Kept) -> bool:
        if self._entered[name] or self._held[name]:
            return True
        with suppress(OrtetError):
            return not kept.session.holding.ended and kept.session.is_running()
        return True

    def _let_go_if_wanted(self, name: str, kept: Kept) -> None:
        late = time.monotonic() - kept.since >= self._turn
        if kept.wanted and late and not self._is_busy(name, kept):
            self._leave(name, kept)

    def _leave(self, name: str, kept: Kept, *, lost: bool = False) -> None:
        self._kept.pop(name, None)
        with suppress(OrtetError):  # then its lease runs out by itself
            self._hand_over(name, kept, lost=lost)

    def _hand_over(self, name: str, kept: Kept, *, lost: bool = False) -> None:
        signal, id_ = kept.session.hub.signal, kept.session.id
        try:
            if lost:
                kept.session.give_up()
            else:
                if kept.wanted:
                    sum_up(kept.session)
                hand_over(kept.session)
        finally:
            if kept.wanted:
                self._gave = {**self._recent(), name: time.monotonic()}
            with suppress(OSError, OrtetError):
                signal.notify(left(id_))

    def _recent(self) -> dict[str, float]:
        past = time.monotonic() - _POLITE
        return {name: when for name, when in self._gave.items() if when > past}

    def _be_polite(self, name: str) -> None:
        """Who waits for what was let go comes first: it learns of it a moment later."""
        gave = self._gave.pop(name, None)
        if gave is not None and (rest := gave + _POLITE - time.monotonic()) > 0:
            time.sleep(rest)

    def _look_after(self, asked: Callable[[str], bool]) -> bool:
        """Let sessions go that another process asks for, or nobody uses; whether any is open."""
        for kept in list(self._kept.values()):
            if asked(wanted(kept.session.id)):
                kept.wanted = True
        with self._lock:
            now = time.monotonic()
            for name, kept in list(self._kept.items()):
                self._let_go_if_wanted(name, kept)
                if now - kept.used > self._linger and not self._is_busy(name, kept):
                    self._leave(name, kept)
            if not self._kept:
                self._keeper = None
            return bool(self._kept)


_EACH_TIME = ("durability", "commit", "profile", "handover", "environment")
