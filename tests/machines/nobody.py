"""Tests again, by a process that has no rights but to read: what is below root's home, say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import ortet

_RIGHTS = "-all,+dac_read_search"


def pass_as_nobody(place: Path, tests: Path, chosen: str) -> None:
    """Those of a file that `chosen` selects; all they say is shown when one fails, or hangs."""
    home, log = place / "home", place / "log"
    home.mkdir()
    os.chown(home, 65534, 65534)
    command = [
        *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
        *(f"--inh-caps={_RIGHTS}", f"--ambient-caps={_RIGHTS}", f"--bounding-set={_RIGHTS}"),
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
        *("-o", "faulthandler_timeout=240", f"--basetemp={home / 'tmp'}", str(tests), "-k", chosen),
    ]
    env = {
        **os.environ,
        "HOME": str(home),
        "TMPDIR": str(home),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(home / "hypothesis"),
        "PYTHONPATH": str(Path(ortet.__file__).parents[1]),
    }
    root = Path(__file__).parents[2]
    try:
        with log.open("wb") as out:
            done = subprocess.run(
                command,
                cwd=root,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                check=False,
            )
    finally:
        said = log.read_text(errors="replace")
        sys.stdout.write(said)
    assert done.returncode == 0
    assert " passed" in said
