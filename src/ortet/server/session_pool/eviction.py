"""Closes open sessions: some time after their last request, or when another process asks for one.

Each store has two threads. One listens for requests of other processes. The other closes sessions;
it is woken by the first thread, by the end of a request to a wanted session, and by a timer. Where
signals do not arrive, other hosts write request rows, which are polled.
"""

from __future__ import annotations

import logging
import time
from threading import Event, Lock, Thread

from ortet.backends.base import Signal
from ortet.hub.hub import Hub
from ortet.server.session_pool.slot import SessionSlot
from ortet.server.session_pool.slots import SlotTable
from ortet.sessions.writing.lease_handover import (
    RETRY_SECONDS,
    LeaseRequests,
    request_topic,
    requested_session,
)

_log = logging.getLogger(__name__)

_QUIET_SECONDS = 0.01
"""Time without a request after which the user of a wanted session is assumed to be done."""
_LISTEN_SECONDS = 5.0
"""Timeout of one wait for signals."""


class SlotEvictor:
    """Evicts the sessions of one store.

    `idle_timeout` and `min_hold` are `linger` and `min_hold` of SessionPool.
    """

    def __init__(
        self,
        slots: SlotTable,
        hub: Hub,
        signal: Signal,
        *,
        idle_timeout: float,
        min_hold: float,
    ) -> None:
        self._slots = slots
        self._hub = hub
        self._signal = signal
        self._idle_timeout = idle_timeout
        self._min_hold = min_hold
        self._poll_interval = (
            min(RETRY_SECONDS, idle_timeout / 4) if hub.store.is_shared else idle_timeout / 4
        )
        self._wakeup = slots.wakeup
        self._stopped = Event()
        self._start_lock = Lock()
        self._threads: list[Thread] = []

    def start(self) -> None:
        """Start the threads, once. Requests from other processes are noticed from now on."""
        if self._threads:
            return
        with self._start_lock:
            if not self._threads and not self._stopped.is_set():
                token, _ = self._signal.wait_any(None, 0)
                work = ("keep", self._run, ()), ("hear", self._listen, (token,))
                threads = [
                    Thread(target=run, args=args, name=f"ortet-sessions-{name}", daemon=True)
                    for name, run, args in work
                ]
                for thread in threads:
                    thread.start()
                self._threads = threads

    def must_hand_over(self, slot: SessionSlot) -> bool:
        """Return True if a session in use must be handed over now.

        That is so if another process asked for it, this server held it for `min_hold` seconds, and
        nothing runs in it.
        """
        return (
            slot.is_wanted
            and time.monotonic() - slot.opened_at >= self._min_hold
            and not slot.is_busy()
        )

    def stop(self) -> None:
        """Ask the threads to end."""
        self._stopped.set()
        self._wakeup.set()

    def join(self, until: float) -> None:
        """Wait for the threads, at least one second each, until a deadline."""
        for thread in self._threads:
            thread.join(max(1.0, until - time.monotonic()))

    def _listen(self, token: int | None) -> None:
        while not self._stopped.is_set():
            try:
                token, topics = self._signal.wait_any(token, _LISTEN_SECONDS)
                if topics is None:  # signals were lost: any session may be wanted
                    self._mark_maybe_requested(self._slots.all_slots())
                else:
                    self._mark_requested({requested_session(topic) for topic in topics})
            except Exception as error:
                token = None
                self._report_failure("hearing who asks for sessions", error)

    def _mark_requested(self, sessions: set[str]) -> None:
        for slot in self._open_slots(sessions):  # this server may have sent the request
            if self._signal.wait(request_topic(slot.id), slot.signal_token, 0):
                slot.is_requested = True
                self._wakeup.set()

    def _mark_maybe_requested(self, slots: list[SessionSlot]) -> None:
        for slot in slots:
            slot.is_maybe_requested = True
            self._wakeup.set()

    def _open_slots(self, sessions: set[str]) -> list[SessionSlot]:
        slots = [self._slots.get(session) for session in sessions]
        return [slot for slot in slots if slot is not None and slot.hub is not None]

    def _run(self) -> None:
        requests, rested, next_ = LeaseRequests(self._hub.store), time.monotonic(), 0.0
        while not self._stopped.is_set():
            try:
                self._wakeup.wait(max(0.0, next_ - time.monotonic()))
                self._wakeup.clear()
                if time.monotonic() >= rested + self._poll_interval:
                    rested = time.monotonic()
                    if self._slots.count:
                        # A row does not tell if its writer still waits.
                        self._mark_maybe_requested(self._open_slots(requests.requested_sessions()))
                    self._slots.clean_up()
                times = [self._evict_if_due(slot) for slot in self._slots.all_slots()]
                next_ = min(
                    [rested + self._poll_interval, *(due for due in times if due is not None)]
                )
            except Exception as error:
                self._report_failure("keeping sessions open", error)

    def _evict_if_due(self, slot: SessionSlot) -> float | None:
        """Evict the slot if it is due. Return when to check again, or None.

        None means that no timer is needed: the end of a request wakes the thread, and the rest is
        polled.
        """
        now, due = time.monotonic(), slot.last_used + self._idle_timeout
        if slot.is_wanted:
            due = min(due, slot.opened_at + self._min_hold, slot.last_used + _QUIET_SECONDS)
        if slot.users:
            return None
        if now < due:
            return due if slot.is_wanted else None
        self._slots.try_evict(slot)
        return None

    def _report_failure(self, what: str, error: Exception) -> None:
        _log.error(what, exc_info=error)
        self._stopped.wait(self._poll_interval)
