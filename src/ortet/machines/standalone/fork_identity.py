"""Gives a copied machine its own identity: machine id, hostname, entropy, and hooks.

Standard library only: pid 1 of a machine loads this file as a plain module.
"""

from __future__ import annotations

import contextlib
import os
import socket
from binascii import a2b_base64
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortet.machines.standalone import event_loop, job_table
else:
    import event_loop
    import job_table

HOOK_KINDS = ("on-fork", "on-restore")
_HOOK_TIMEOUT_SECONDS = 30.0  # for one hook
_MAX_OUTPUT_BYTES = 1 << 16  # of a hook's output in the reply
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def renew_identity(table: job_table.JobTable, request: dict[str, Any]) -> event_loop.PendingReply:
    """Set the identity, run the hooks, and reply with the result of each."""
    if os.getpid() != 1:
        return {"bad": "this is no machine: it would rename the host"}
    if request["hooks"] not in HOOK_KINDS:
        return {"bad": f"hooks are {' or '.join(HOOK_KINDS)}"}
    _set_identity(request["machine_id"], request["hostname"], a2b_base64(request["entropy"]))
    results = []
    for path in find_hooks(request["hooks"], request.get("place") or ""):
        results.append((yield from _run_hook(table, path, request)))
    return {"hooks": results}


def find_hooks(kind: str, workspace_path: str) -> list[str]:
    """Return the hooks of the system, then those of the workspace, each sorted by name."""
    hooks = []
    for directory in (f"/etc/ortet/{kind}.d", f"{workspace_path}/.ortet-hooks/{kind}"):
        with contextlib.suppress(OSError):
            hooks += [f"{directory}/{name}" for name in sorted(os.listdir(directory))]
    return [path for path in hooks if os.path.isfile(path) and os.access(path, os.X_OK)]


def _set_identity(machine_id: str, hostname: str, entropy: bytes) -> None:
    with open("/etc/machine-id", "w", encoding="ascii") as file:
        file.write(machine_id + "\n")
    socket.sethostname(hostname)
    with open("/dev/urandom", "wb", buffering=0) as pool:
        pool.write(entropy)


def _run_hook(
    table: job_table.JobTable, path: str, request: dict[str, Any]
) -> event_loop.PendingReply:
    result: dict[str, Any] = {"path": path, "code": None, "output": "", "timed_out": False}
    start = {
        "kind": "service",
        "argv": [path],
        "env": request.get("env") or {"PATH": _DEFAULT_PATH},
        "cwd": request.get("place") or "/",
    }
    try:
        job = table.start(start)
    except (OSError, ValueError) as error:
        return {**result, "output": str(error)}
    until = event_loop.deadline_after(request.get("timeout") or _HOOK_TIMEOUT_SECONDS)
    while job.alive and event_loop.now() < until:
        yield until
    if job.alive:
        result["timed_out"] = True
        for _ in table.kill(job, ""):
            yield event_loop.now() + 0.001
        table.reap()
    output, _, _ = job.rings["output"].read(
        job.rings["output"].end - _MAX_OUTPUT_BYTES, _MAX_OUTPUT_BYTES
    )
    table.forget(job)
    return {**result, "code": job.code, "output": output.decode("utf-8", "replace")}
