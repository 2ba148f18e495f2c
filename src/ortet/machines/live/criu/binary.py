"""Finds a usable CRIU on this host, or says why there is none."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from ortet.machines.base import Capability
from ortet.machines.standalone.syscalls import is_privileged

MIN_VERSION = (4, 2)
"""Older versions of CRIU cannot dump sockets on kernel 6.16 and newer."""

_BUNDLED_CRIU = "/usr/local/lib/ortet/criu/criu"  # where scripts/criu installs it
_FALLBACK_HINT = (
    "until then engine='overlay' keeps files and environment, and starts services again"
)
_ROOT_FIX = f"run as root on a kernel with CONFIG_CHECKPOINT_RESTORE; {_FALLBACK_HINT}"
_INSTALL_FIX = f"install CRIU 4.2 or newer (scripts/criu does it on Debian); {_FALLBACK_HINT}"


def find_criu(configured: str = "") -> str:
    """Return the path of CRIU, or "" if there is none.

    A configured path is used without a search; "off" means none. Otherwise the first CRIU that is
    new enough is used, or else the first that exists.
    """
    if configured:
        return "" if configured == "off" else configured
    # The bundled CRIU first: it is installed only if the system's is not usable.
    candidates = [
        path for path in (_BUNDLED_CRIU, shutil.which("criu") or "") if Path(path).is_file()
    ]
    good = [path for path in candidates if criu_version(path) >= MIN_VERSION]
    return [*good, *candidates, ""][0]


@cache
def criu_version(program: str) -> tuple[int, ...]:
    """Return the version, for example (4, 2, 1), or () if the program cannot be run."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    except OSError:
        return ()
    match = re.search(r"^Version:\s*([\d.]+)", done.stdout, re.MULTILINE)
    return tuple(map(int, match.group(1).strip(".").split("."))) if match else ()


@cache
def probe_criu(program: str) -> list[Capability]:
    """Report whether CRIU works here, by running it."""
    why, fix = _why_unusable(program)
    if why:
        return [Capability("criu", False, why, fix)]
    text = ".".join(map(str, criu_version(program)))
    return [Capability("criu", True, f"running processes are committed too ({program} {text})")]


def _why_unusable(program: str) -> tuple[str, str]:
    """Return why CRIU cannot be used, and what to do; empty strings if it can."""
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
