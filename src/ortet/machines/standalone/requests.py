"""The requests that pid 1 of a machine accepts, and their replies.

Standard library only: pid 1 loads this file as a plain module. A reply that takes time is a
generator. It delays its own connection and no other.
"""

from __future__ import annotations

import os
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortet.machines.standalone import (
        connections,
        event_loop,
        fork_identity,
        job_table,
        procfs,
        ring_buffer,
    )
    from ortet.machines.standalone import job as initjobs
else:
    import connections
    import event_loop
    import fork_identity
    import job as initjobs
    import job_table
    import procfs
    import ring_buffer

_DEFAULT_READ_BYTES = 1 << 18  # bytes of a stream in one reply by default
_RECONNECT_GRACE_SECONDS = (
    2.0  # time for the reader of a run to come back after its connection broke
)
_KILL_POLL_SECONDS = 0.001  # between two checks of processes that are being killed

Request = dict[str, Any]
Reply = dict[str, Any]

_Handler = Callable[["connections.ControlConnection", Request], "Reply | event_loop.PendingReply"]


class RequestHandlers:
    """The request handlers of pid 1, by request name, over its job table and listener."""

    def __init__(self, loop: event_loop.EventLoop, path: str) -> None:
        self.table = job_table.JobTable(loop)
        self.listener = connections.ControlListener(loop, path, self.handle, self._on_disconnect)
        self._handlers: dict[str, _Handler] = {
            "start": self._start,
            "read": self._read,
            "follow": self._follow,
            "write": self._write,
            "resize": self._resize,
            "signal": self._signal,
            "wait": self._wait,
            "kill": self._kill,
            "forget": self._forget,
            "ps": self._ps,
            "logs": self._logs,
            "state": self._state,
            "leave": self._leave,
            "renew": self._renew,
        }

    def handle(
        self, peer: connections.ControlConnection, request: Request
    ) -> Reply | event_loop.PendingReply:
        """Handle one request.

        Errors become replies: if this process ended, the machine would end.
        """
        try:
            verb = self._handlers.get(request.get("do", ""))
            if verb is None:
                return {"bad": f"no request {request.get('do')!r}"}
            answer = verb(peer, request)
        except Exception as error:
            return _error_reply(error)
        return answer if isinstance(answer, dict) else self._catch_errors(answer)

    def _catch_errors(self, pending: event_loop.PendingReply) -> event_loop.PendingReply:
        try:
            return (yield from pending)
        except Exception as error:
            return _error_reply(error)

    def _on_disconnect(self, peer: connections.ControlConnection) -> None:
        """Keep the runs of a closed connection waiting for their reader.

        After a dump the reader comes back; after a broken connection it may come back on another
        one.
        """
        for job in self.table:
            if job.reader is peer:
                job.detach_reader(None if peer.is_closing else _RECONNECT_GRACE_SECONDS)

    # start and end

    def _start(self, peer: connections.ControlConnection, request: Request) -> Reply:
        job = self.table.start(request, peer if request.get("followed") else None)
        return {"id": job.id, "pid": job.pid}

    def _wait(
        self, peer: connections.ControlConnection, request: Request
    ) -> event_loop.PendingReply:
        job = self.table.find(request)
        until = event_loop.deadline_after(request.get("wait"))
        while job.alive and not peer.must_reply(until):
            yield until
        return self._exit_reply(job)

    def _exit_reply(self, job: initjobs.JobProcess) -> Reply:
        """Return the exit code of a job, and forget an ended run.

        The exit code of a run is read only once.
        """
        if job.kind == "run" and not job.alive:
            self.table.forget(job)
        return {"code": job.code, "busy": self.table.has_processes()}

    def _kill(self, __: connections.ControlConnection, request: Request) -> event_loop.PendingReply:
        job = self.table.find(request)
        for _ in self.table.kill(job, request.get("mark") or job.mark):
            yield event_loop.now() + _KILL_POLL_SECONDS
        self.table.reap()
        return {"code": job.code}

    def _signal(self, _: connections.ControlConnection, request: Request) -> Reply:
        job = self.table.find(request)
        sent = job.signal(request["signal"], group=bool(request.get("group")))
        return {"sent": sent, "code": job.code}

    def _forget(self, _: connections.ControlConnection, request: Request) -> Reply:
        job = self.table.find(request)
        if job.alive:
            return {"error": "alive"}
        self.table.forget(job)
        return {}

    # streams

    def _read(
        self, peer: connections.ControlConnection, request: Request
    ) -> event_loop.PendingReply:
        job, stream = self.table.find(request), request.get("stream") or "stdout"
        cursor, until = request.get("cursor") or 0, event_loop.deadline_after(request.get("wait"))
        ring = job.rings[stream]
        job.resume_reading(stream)
        while (
            ring.end <= cursor
            and job.alive
            and not job.is_eof(stream)
            and not peer.must_reply(until)
        ):
            yield until
        data, cursor, missed = ring.read(cursor, _read_limit(request))
        return {
            "data": _encode_base64(data),
            "cursor": cursor,
            "missed": missed,
            "eof": cursor >= ring.end and job.is_eof(stream),
            "code": job.code,
        }

    def _follow(
        self, peer: connections.ControlConnection, request: Request
    ) -> event_loop.PendingReply:
        """Return new output of a run and accept its input.

        The run is forgotten once its end was reported. The request may be repeated: all positions
        are counted from the beginning of the streams.
        """
        job, until = self.table.find(request), event_loop.deadline_after(request.get("wait"))
        job.set_reader(peer)
        cursors = dict(zip(("stdout", "stderr"), request["cursors"], strict=True))
        for stream, cursor in cursors.items():
            job.acknowledge(stream, cursor)
        rest = _unaccepted_input(job, request)
        eof = bool(request.get("eof"))
        more = bool(rest) and not eof
        while True:
            rest = job.feed(rest, eof=eof)
            eof = eof and bool(rest)
            new = any(job.rings[name].end > cursor for name, cursor in cursors.items())
            if new or not job.alive or (more and not rest) or peer.must_reply(until):
                break
            yield until
        reply: Reply = {"missed": [], "taken": job.input.accepted_bytes if job.input else 0}
        for stream, cursor in cursors.items():
            data, cursors[stream], missed = job.rings[stream].read(cursor, _read_limit(request))
            reply[stream] = _encode_base64(data)
            reply["missed"].append(missed)
        reply["cursors"] = list(cursors.values())
        over = all(job.rings[name].end <= cursor for name, cursor in cursors.items())
        reply["ended"] = not job.alive and over
        return {**reply, **self._exit_reply(job)} if reply["ended"] else reply

    def _write(
        self, peer: connections.ControlConnection, request: Request
    ) -> event_loop.PendingReply:
        job, until = self.table.find(request), event_loop.deadline_after(request.get("wait"))
        if job.input is None:
            return {"error": "no_input"}
        rest = _unaccepted_input(job, request)
        while rest := job.feed(rest, eof=bool(request.get("eof"))):
            if peer.must_reply(until):
                break
            yield until
        return {"taken": job.input.accepted_bytes, "left": len(rest), "closed": job.input.closed}

    def _resize(self, _: connections.ControlConnection, request: Request) -> Reply:
        self.table.find(request).resize(request["rows"], request["columns"])
        return {}

    def _logs(self, __: connections.ControlConnection, request: Request) -> Reply:
        job = self.table.find(request)
        ring = job.rings.get("output") or job.rings["stdout"]
        last = request.get("last")
        begin = ring.start if last is None else max(ring.end - last, ring.start)
        data, cursor, _ = ring.read(begin, ring_buffer.RING_BYTES)
        return {
            "data": _encode_base64(data),
            "cursor": cursor,
            "missed": ring.start,
            "code": job.code,
        }

    # the machine

    def _ps(self, _: connections.ControlConnection, request: Request) -> Reply:
        self.table.reap()
        processes = self.table.list_processes() if request.get("processes", True) else []
        return {"jobs": [job.describe() for job in self.table], "processes": processes}

    def _state(self, _: connections.ControlConnection, request: Request) -> Reply:
        place = request.get("place")
        mapped = procfs.mapped_files(place.rstrip("/") + "/") if place else []
        return {"busy": self.table.has_processes(), "mapped": mapped}

    def _leave(self, peer: connections.ControlConnection, _: Request) -> event_loop.PendingReply:
        return self.listener.disconnect_all(peer)

    def _renew(self, _: connections.ControlConnection, request: Request) -> event_loop.PendingReply:
        for job in self.table:
            if (
                job.reader is initjobs.READER_AWAY
            ):  # the reader of the original does not read the copy
                job.release_reader()
        return fork_identity.renew_identity(self.table, request)


def _unaccepted_input(job: initjobs.JobProcess, request: Request) -> bytes:
    """Return the input of a request without the part that an earlier copy of it delivered."""
    data = a2b_base64(request.get("data") or "")
    start = request.get("at")
    if job.input is None or start is None:
        return data
    return data[max(job.input.accepted_bytes - start, 0) :]


def _read_limit(request: Request) -> int:
    return min(max(request.get("most") or _DEFAULT_READ_BYTES, 1), ring_buffer.RING_BYTES)


def _encode_base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode("ascii")


def _error_reply(error: Exception) -> Reply:
    if isinstance(error, job_table.UnknownJob):
        return {"error": "no_job"}
    if isinstance(error, job_table.NameTaken):
        return {"error": "name_taken"}
    if isinstance(error, OSError):
        wrong = isinstance(error, initjobs.WrongDirectory)
        reason = os.strerror(error.errno) if error.errno else str(error)
        return {"errno": error.errno, "error": reason, "directory": wrong}
    if isinstance(error, KeyError):
        return {"bad": f"it lacks {error}"}
    return {"bad": str(error) or type(error).__name__}
