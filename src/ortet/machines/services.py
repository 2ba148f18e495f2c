"""Records of the programs that ran at a commit.

With them, programs can be started again where an engine does not restore processes.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence

from msgspec.structs import replace

from ortet._util.codec import StoredRecord, decode, encode
from ortet.errors import OrtetError
from ortet.history.records import Image, Processes
from ortet.ids import Oid
from ortet.machines.base import Loss
from ortet.machines.host_compat import check_host, this_host
from ortet.machines.jobs import JobInfo
from ortet.objects.base import Kind, ObjectStore


class ExternalConnection(StoredRecord, frozen=True):
    """A network connection of a process to the outside of the machine.

    `pid` is the number inside the machine. `door` is True for a client of an exposed port.
    """

    pid: int
    command: str
    local: str
    peer: str
    door: bool = False


class RunningServices(StoredRecord, frozen=True):
    """The data that a restore of processes needs: mounts, jobs, and external connections."""

    mounts: list[str] = []
    jobs: list[JobInfo] = []
    outlet: bool = False  # they had an outbound network: sockets may need its address
    outside: list[ExternalConnection] = []  # open connections to the outside


class Service(StoredRecord, frozen=True):
    """A background program. `cwd` is relative to the workspace."""

    name: str
    argv: list[str]
    cwd: str = ""


def make_storable(jobs: Sequence[JobInfo]) -> list[JobInfo]:
    """Return the jobs with bytes replaced that are not valid UTF-8: a record holds only text."""
    return [replace(job, argv=[_text(one) for one in job.argv], cwd=_text(job.cwd)) for job in jobs]


def put_services(objects: ObjectStore, jobs: Sequence[JobInfo], place: str) -> bytes:
    """Store the running services among `jobs`, sorted by name; return b"" for none."""
    services = [
        Service(job.name, job.argv, _below(job.cwd, place))
        for job in sorted(make_storable(jobs), key=lambda job: job.name)
        if job.declared and job.code is None
    ]
    if objects.scanner is not None:
        for service in services:
            where = f"the command of service {service.name!r}"
            objects.scanner.text(
                shlex.join(service.argv), where, "end it, and give secrets to s.run"
            )
            objects.scanner.data("\0".join(service.argv).encode("utf-8", "surrogateescape"), where)
    return objects.put(Kind.META, encode(services)) if services else b""


def load_services(objects: ObjectStore, image: Image) -> list[Service]:
    return decode(list[Service], objects.get(Oid(image.services))) if image.services else []


def running_program_names(objects: ObjectStore, image: Image) -> list[str]:
    """Return the names of the programs that a commit holds as running, in start order."""
    if not image.processes:
        return []
    record = decode(Processes, objects.get(Oid(image.processes)))
    return [
        job.name
        for job in decode(RunningServices, record.jobs).jobs
        if job.name and job.code is None
    ]


def is_restorable(objects: ObjectStore, image: Image, place: str) -> bool:
    """Return True if this host can restore the processes of an image.

    The processes know their workspace by its path, so it must have been at `place`.
    """
    if not image.processes:
        return False
    record = decode(Processes, objects.get(Oid(image.processes)))
    if check_host(record, this_host(record.version)):
        return False
    return place in decode(RunningServices, record.jobs).mounts


def service_losses(objects: ObjectStore, image: Image, engine: str) -> list[Loss]:
    """Return a loss for each program that an engine without processes does not restore.

    Each loss says how to start the program.
    """
    again = "start it with" if engine == "folder" else "--restart (restart=True) starts it:"
    try:
        services = load_services(objects, image)
    except OrtetError as error:  # the files are restored; that is enough to continue
        return [Loss("", "process", f"what ran at this commit cannot be read: {error}")]
    losses = [
        Loss(
            one.name,
            "process",
            f"it ran at this commit and does not come back with engine {engine!r}: {again} "
            f"`{shlex.join(one.argv)}` in {one.cwd or '.'}",
        )
        for one in services
    ]
    if image.processes and not losses:
        why = f"programs that ran at this commit do not come back with engine {engine!r}"
        losses.append(Loss("", "process", why))
    return losses


def unsaved_process_losses(jobs: Sequence[JobInfo], engine: str) -> list[Loss]:
    """Return a loss for each running program of which a commit holds only the command."""
    why = f"it goes on, but engine {engine!r} keeps its command only: use engine='criu'"
    return [Loss(job.name, "process", why) for job in jobs if job.name and job.code is None]


def closed_connection_losses(connections: Sequence[ExternalConnection]) -> list[Loss]:
    """Return a loss for each external connection, which is closed in a copy."""
    return [
        Loss(one.local if one.door else one.peer, "connection", _why(one), one.pid, one.command)
        for one in connections
    ]


def _why(connection: ExternalConnection) -> str:
    who = f"process {connection.pid} ({connection.command})" if connection.pid else "a process"
    what = (
        f"had a client from outside at {connection.local}, through a port that was exposed"
        if connection.door
        else f"was connected to it from {connection.local}"
    )
    return (
        f"{who} {what}: in this copy the connection is closed, and it must be made again "
        "(on-fork and on-restore hooks can see to that)"
    )


def _text(word: str) -> str:
    return os.fsencode(word).decode("utf-8", "replace")


def _below(cwd: str, place: str) -> str:
    """Return `cwd` relative to the workspace, or "" if it is elsewhere."""
    path = os.path.relpath(cwd, place)
    return "" if path == "." or path.startswith("..") else path
