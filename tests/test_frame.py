"""The frame around the code: one version, clean lock files, sizes, what is shipped."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import ortet

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
# In pieces, so that this file does not name what it forbids.
REGISTRIES = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("npmjs", "org"),
        ("yarnpkg", "com"),
        ("deb", "debian", "org"),
        ("crates", "io"),
    )
]
MACHINE_PATHS = [
    "/".join(("", *parts))
    for parts in (
        ("work", "main"),
        ("work", "shared"),
        ("root", ".pyenv"),
        ("tmp", "v", ""),
        ("opt", "wheels"),
        ("opt", "pypi"),
    )
]


def committed() -> Iterator[tuple[str, str]]:
    """Name and text of every committed text file."""
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listing.stdout.split("\0")):
        path = ROOT / name
        if path.is_file():
            yield name, path.read_bytes().decode("utf-8", "replace")


def test_version_is_written_in_one_place() -> None:
    pattern = re.compile(rf"""version(?:__)?\s*=\s*["']{re.escape(ortet.__version__)}["']""")
    places = [
        name
        for name, text in committed()
        if name.endswith((".py", ".toml")) and pattern.search(text)
    ]
    assert places == ["src/ortet/__init__.py"]


def test_changelog_begins_with_this_version_or_the_next() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] in (ortet.__version__, "Next")
    assert ortet.__version__ in headings


@pytest.mark.parametrize("forbidden", [*REGISTRIES, *MACHINE_PATHS])
def test_no_file_names_a_registry_or_a_path_of_the_build_machine(forbidden: str) -> None:
    assert [name for name, text in committed() if forbidden in text] == []


def test_lock_files_record_no_address() -> None:
    locks = sorted((ROOT / "requirements").glob("*.txt"))
    assert [lock.name for lock in locks] == [
        "bench-peers.txt",
        "dev.txt",
        "language-server.txt",
        "memory-peers.txt",
        "minilm.txt",
        "mutation.txt",
        "quick.txt",
        "run.txt",
    ]
    for lock in locks:
        text = lock.read_text()
        assert not re.search(r"://|--(index|extra-index|find|trusted)", text), lock.name
        pins = re.findall(r"^\S+==\S+", text, re.MULTILINE)
        assert len(re.findall(r"^\S+==.* \\\n +--hash=", text, re.MULTILINE)) == len(pins) > 0


def test_the_run_and_quick_lock_files_are_subsets_of_the_dev_lock_file() -> None:
    run, quick, dev = (
        set(re.findall(r"^(\S+==\S+)", (ROOT / "requirements" / f"{name}.txt").read_text(), re.M))
        for name in ("run", "quick", "dev")
    )
    assert run < quick < dev


def test_functions_stay_small() -> None:
    for source in SOURCES:
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node, clean=False) or ""
                lines = (node.end_lineno or node.lineno) - node.lineno - text.count("\n")
                assert lines <= 60, f"{source.name}: {node.name} has {lines} lines"


def test_the_library_never_prints_and_leaves_no_marks() -> None:
    for source in SOURCES:
        text = source.read_text()
        assert not re.search(r"\b(TODO|FIXME|XXX)\b", text), source.name
        if "cli" not in source.parts:
            assert not re.search(r"^\s*print\(", text, re.MULTILINE), source.name


def test_scripts_are_executable() -> None:
    scripts = [one for one in (ROOT / "scripts").iterdir() if one.suffix != ".c"]
    for script in [*scripts, ROOT / ".ci" / "run"]:
        assert script.stat().st_mode & 0o111 == 0o111, script.name
        assert script.read_text().startswith("#!/usr/bin/env bash\n"), script.name


def test_the_wheel_contains_every_file_of_the_package(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.startswith(f"ortet-{ortet.__version__}-py3-none-any")
    names = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "src" / "ortet"
    expected = {
        str(path.relative_to(package.parent))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "ortet/py.typed" in names
    assert expected <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_command_tells_its_version() -> None:
    command = Path(sys.executable).with_name("ortet")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert ortet.__version__ in done.stdout
