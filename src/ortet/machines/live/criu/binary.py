"""Finds a CRIU that can be used on this host, and says why not."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from ortet.machines.base import Capability
from ortet.machines.standalone.syscalls import is_privileged

MIN_VERSION = (4, 2)
"""Before it CRIU cannot dump sockets on kernels from 6.16 on."""

_BUNDLED_CRIU = "/usr/local/lib/ortet/criu/criu"  # where scripts/criu puts it
_FALLBACK_HINT = (
    "until then engine='overlay' keeps files and environment, and starts services again"
)
_ROOT_FIX = f"run as root on a kernel with CONFIG_CHECKPOINT_RESTORE; {_FALLBACK_HINT}"
_INSTALL_FIX = f"install CRIU 4.2 or newer (scripts/criu does it on Debian); {_FALLBACK_HINT}"


def find_criu(configured: str = "") -> str:
    """The one given, and no other ("off" is none); else the first that is new enough, else the
    first there is; "" for none."""
    if configured:
        return "" if configured == "off" else configured
    # ours before the system's: it is there only because that one does not do
    found = [path for path in (_BUNDLED_CRIU, shutil.which("criu") or "") if Path(path).is_file()]
    good = [path for path in found if criu_version(path) >= MIN_VERSION]
    return [*good, *found, ""][0]


@cache
def criu_version(program: str) -> tuple[int, ...]:
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
    why, fix = _why_unusable(program)
    if why:
        return [Capability("criu", False, why, fix)]
    text = ".".join(map(str, criu_version(program)))
    return [Capability("criu", True, f"running processes are committed too ({program} {text})")]


def _why_unusable(program: str) -> tuple[str, str]:
    """Why it cannot be used, and what to do; nothing when it can."""
    if not is_privileged():
        return "processes can be dumped and restored by root only", _ROOT_FIX
    known = criu_version(program) if program else ()
    if known < MIN_VERSION:
        text = ".".join(map(str, known))
        why = (
            f"{program} is {text or 'not runnable'}"
            if program
            else "CRIU is not installed, or ORTET_CRIU=off"
        )
        return why, _INSTALL_FIX
    done = subprocess.run(
        [program, "check"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "Error" in line]
        return f"this kernel does not let it ({'; '.join(lines[-2:])})", _ROOT_FIX
    return "", ""
