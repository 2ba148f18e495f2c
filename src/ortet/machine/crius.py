"""Finds a CRIU that can be used on this host, and says why not."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from ortet.machine.abc import Capability
from ortet.machine.mounts import privileged

OLDEST = (4, 2)
"""Before it CRIU cannot dump sockets on kernels from 6.16 on."""

_OURS = "/usr/local/lib/ortet/criu/criu"  # where scripts/criu puts it
_FIX = "install CRIU 4.2 or newer (scripts/criu does it on Debian), or use engine='overlay'"


def find_criu(given: str = "") -> str:
    """The first that is new enough, else the first there is; "" for none."""
    found = [path for path in (given, shutil.which("criu") or "", _OURS) if Path(path).is_file()]
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


def probe_criu(program: str) -> list[Capability]:
    """What the engine needs beyond overlays."""
    root = privileged()
    found = [
        Capability(
            "root for CRIU",
            root,
            "" if root else "processes can be dumped and restored by root only",
            "" if root else "run as root, or use engine='overlay': files come back, not processes",
        )
    ]
    known = version(program) if program else ()
    text = ".".join(map(str, known))
    if known >= OLDEST:
        found.append(Capability("CRIU", True, f"{program} {text}"))
    else:
        why = f"{program} is {text or 'not runnable'}" if program else "it is not installed"
        found.append(Capability("CRIU", False, why, _FIX))
    return found
