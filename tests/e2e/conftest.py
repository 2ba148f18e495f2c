"""A workspace that the command line made, and commits in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fixtures.commands import Commit, Ortet


@pytest.fixture
def proj(tmp_path: Path, ortet: Ortet) -> Path:
    """A workspace with two files and no commit."""
    place = tmp_path / "proj"
    place.mkdir()
    (place / "a.txt").write_text("one\n")
    (place / "src").mkdir()
    (place / "src" / "main.py").write_text("print('hi')\n")
    ortet("init", cwd=place)
    return place


@pytest.fixture
def commit(ortet: Ortet, proj: Path) -> Commit:
    """Write files, commit, return the id."""

    def make(message: str, **files: str) -> str:
        for name, text in files.items():
            (proj / name).write_text(text)
        oid: str = ortet.json("commit", "-m", message, cwd=proj)["oid"]
        return oid

    return make
