"""Finds a CRIU that can be used on this host, and says why not."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from ortet.machines.base import Capability
from ortet.machines.standalone.syscalls import privileged

OLDEST = (4, 2)
"""Before it CRIU cannot dump sockets on kernels from 6.16 on."""

_OURS = "/usr/local/lib/ortet/criu/criu"  # where scripts/criu puts it
_KEPT = "until then engine='overlay' keeps files and environment, and starts services again"
_WEAKER = f"run as root on a kernel with CONFIG_CHECKPOINT_RESTORE; {_KEPT}"
_FIX = f"install CRIU 4.2 or newer (scripts/criu does it on Debian); {_KEPT}"


def find_criu(given: str = "") -> str:
    """The one given, and no other ("off" is none); else the first that is new enough, else the
    first there is; "" for none."""
    if given:
        return "" if given == "off" else given
    # ours before the system's: it is there only because that one does not do
    found = [path for path in (_OURS, shutil.which("criu") or "") if Path(path).is_file()]
    good = [path for path in found if version(path) >= OLDEST]
    return [*good, *found, ""][0]


@cache
def version(program: str) -> tuple[int, ...]:
    """(4, 2, 1); () when it cannot be run."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return ()
    match = re.search(r"^Version:\s*([\d.]+)", done.stdout, re.MULTILINE)
    return tuple(map(int, match.group(1).strip(".").split("."))) if match else ()


@cache
def probe_criu(program: str) -> list[Capability]:
    """What the engine needs beyond overlays, tried for real."""
    why, fix = _lacks(program)
    if why:
        return [Capability("criu", False, why, fix)]
    text = ".".join(map(str, version(program)))
    return [Capability("criu", True, f"running processes are committed too ({program} {text})")]


def _lacks(program: str) -> tuple[str, str]:
    """Why it cannot be used, and what to do; nothing when it can."""
    if not privileged():
        return "processes can be dumped and restored by root only", _WEAKER
    known = version(program) if program else ()
    if known < OLDEST:
        text = ".".join(map(str, known))
        why = (
            f"{program} is {text or 'not runnable'}"
            if program
            else "CRIU is not installed, or ORTET_CRIU=off"
        )
        return why, _FIX
    done = subprocess.run(
        [program, "check"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "Error" in line]
        return f"this kernel does not let it ({'; '.join(lines[-2:])})", _WEAKER
    return "", ""
