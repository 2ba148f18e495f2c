"""What one needs to know of a host to compare its numbers with others."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import apsw

import ortet
from measure import PAGE, Scene

VERSIONS = ("git --version", "restic version", "borg --version", "btrfs --version", "mkfs.xfs -V")
BROWSERS = ("chromium", "google-chrome", "chromium-browser")
PACKAGES = ("uvicorn", "starlette", "httptools", "mcp")


def files_facts(scene: Scene) -> dict[str, str]:
    return {
        "workspace": f"{scene.files} files in {scene.directories} directories, "
        f"{scene.bytes / 1e6:.0f} MB; npm install {' '.join(scene.packages)}; "
        f"a SQLite file of {scene.database_pages * PAGE / 1e6:.0f} MB",
        "peers": "; ".join(say(*words.split()) for words in VERSIONS),
    }


def chromium() -> str | None:
    """The first of its names that is there."""
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def serve_facts(browser: str | None) -> dict[str, str]:
    packages = "; ".join(f"{name} {version(name)}" for name in PACKAGES)
    return {"packages": packages, "browser": say(browser, "--version") if browser else "none"}


def facts(place: Path) -> dict[str, str]:
    commit = say("git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "ortet": f"{ortet.__version__}, {commit}",
        "kernel": f"{platform.system()} {platform.release()}",
        "cpu": f"{cpu()}, {os.cpu_count()} cores",
        "memory": f"{memory:.0f} GiB",
        "file system": say("findmnt", "-n", "-o", "FSTYPE", "-T", str(place)),
        "load at the start": f"{os.getloadavg()[0]:.2f}",
        "python, sqlite": f"{platform.python_version()}, {apsw.sqlite_lib_version()}",
    }


def cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def say(*words: str) -> str:
    """The first line a command prints, or that it is not there."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError:
        return f"no {words[0]}"
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0] if lines and done.returncode == 0 else f"{words[0]}: unknown"
