"""The workspace that is measured: an `npm install`, a SQLite database and a large binary."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import tempfile
from pathlib import Path

import apsw
import msgspec

import measure
from measure import Scene

# Installed together: a web project as one finds it, about 30 000 files.
PACKAGES = (
    "next",
    "react",
    "react-dom",
    "typescript",
    "webpack",
    "eslint",
    "jest",
    "three",
    "@mui/material",
    "date-fns",
)
FEW_PACKAGES = ("webpack", "express")
MIB = 1 << 20
TEXT = (
    "the agent wrote a file then ran the tests and read what failed before it changed one line "
    "of the parser again because a token at the end was lost when the buffer ran empty"
)


def cache_directory() -> Path:
    """Outside the repository; a run without it costs a minute more."""
    place = os.environ.get("ORTET_BENCH_CACHE") or os.path.join(
        tempfile.gettempdir(), "ortet-bench"
    )
    return Path(place)


def build(cache: Path, *, quick: bool) -> Scene:
    """The cached workspace, made now when there is none."""
    kind = "quick" if quick else "full"
    root, facts = cache / f"workspace-{kind}", cache / f"workspace-{kind}.json"
    if facts.exists():
        return msgspec.json.decode(facts.read_bytes(), type=Scene, dec_hook=_path)
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    packages = FEW_PACKAGES if quick else PACKAGES
    _npm_install(root, packages)
    _make_database(root / "data.db", (20 if quick else 200) * MIB)
    _make_binary(root / "model.bin", (5 if quick else 50) * MIB)
    scene = _describe(root, list(packages))
    facts.write_bytes(msgspec.json.encode(scene, enc_hook=str))
    return scene


def copy(scene: Scene, to: Path) -> Path:
    """A copy of its own for one system."""
    to.mkdir(exist_ok=True)
    measure.command(["cp", "-a", f"{scene.root}/.", str(to)])
    return to


def _path(kind: type, value: object) -> object:
    return kind(value)


def _npm_install(root: Path, packages: tuple[str, ...]) -> None:
    (root / "package.json").write_text(json.dumps({"name": "bench", "private": True}))
    options = "--ignore-scripts --no-audit --no-fund --no-progress --loglevel=error"
    words = ["npm", "install", *options.split(), "--legacy-peer-deps", *packages]
    try:
        measure.command(words, cwd=root)
    except (OSError, subprocess.CalledProcessError) as error:
        output = getattr(error, "output", b"").decode("utf-8", "replace")
        raise SystemExit(
            f"npm install failed ({error}): is npm there, and a registry?\n{output}"
        ) from error


def _make_database(path: Path, size: int) -> None:
    """Real rows with an index, until the file has its size."""
    chance, words = random.Random(1), TEXT.split()
    connection = apsw.Connection(str(path))
    connection.execute(f"PRAGMA page_size={measure.PAGE}; PRAGMA synchronous=OFF")
    connection.execute("CREATE TABLE note(id INTEGER PRIMARY KEY, who TEXT, score REAL, body TEXT)")
    connection.execute("CREATE INDEX note_who ON note(who)")
    while path.stat().st_size < size:
        rows = [
            (f"user-{chance.randrange(10**6)}", chance.random(), _sentence(chance, words))
            for _ in range(20_000)
        ]
        with connection:
            connection.executemany("INSERT INTO note(who, score, body) VALUES(?, ?, ?)", rows)
    connection.close()


def _sentence(chance: random.Random, words: list[str]) -> str:
    return " ".join(chance.choices(words, k=chance.randrange(20, 60)))


def _make_binary(path: Path, size: int) -> None:
    """Does not compress, as model weights and archives do not."""
    chance = random.Random(2)
    with path.open("wb") as file:
        for _ in range(size // MIB):
            file.write(chance.randbytes(MIB))


def _describe(root: Path, packages: list[str]) -> Scene:
    files = directories = total = 0
    for place, _, names in os.walk(root):
        directories += 1
        for name in names:
            files += 1
            total += os.lstat(os.path.join(place, name)).st_size
    return Scene(
        root=root,
        files=files,
        directories=directories,
        bytes=total,
        database_pages=(root / "data.db").stat().st_size // measure.PAGE,
        packages=packages,
    )
