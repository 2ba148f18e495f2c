"""Reads the state of a git repository without trusting its configuration.

A configuration may name programs to run. On the host, git runs with a temporary git directory. That
directory has the refs, objects and index of the repository, but not its configuration. In a
machine, git runs inside, where the author of the configuration can run programs anyway. Without
git, only files are read.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from ortet.journal.environment import Git
from ortet.sessions.environment.rooted import ProbeTarget, RootedReader, RunCommand

_GIT_TIMEOUT_SECONDS = 10.0
"""Timeout for git, in seconds: enough for a million files."""
_MAX_CHANGED_PATHS = 100
_OID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?\Z")
_REF = re.compile(r"refs/[^\x00-\x20\x7f~^:?*\[\\]{1,400}\Z")
_STATUS = (
    *("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"),
    *("-c", "core.untrackedCache=false", "status", "--porcelain=v2", "-z"),
    *("--untracked-files=normal", "--ignore-submodules=dirty", "--no-renames"),
)
_SAFE_GIT_ENV = {
    "GIT_OPTIONAL_LOCKS": "0",  # never write the index
    "GIT_ALLOW_PROTOCOL": "none",  # never fetch what a partial clone lacks
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "LC_ALL": "C",
}
_SAFE_SETTING = re.compile(
    r"(?:core\.(?:repositoryformatversion|filemode|symlinks|ignorecase|autocrlf|eol|safecrlf"
    r"|precomposeunicode|sparsecheckout|sparsecheckoutcone)"
    r"|extensions\.(?:objectformat|refstorage))\Z"
)
"""Settings that affect the status and name no program, file or place."""
_SAFE_VALUE = re.compile(r"[A-Za-z0-9]{0,20}\Z")


def read_git_state(
    machine: RootedReader, target: ProbeTarget, environ: Mapping[str, str]
) -> Git | None:
    """Return the state of the repository whose top directory is the workspace, or None."""
    work, status = target.workspace_path, list(_STATUS)
    if target.left_out:
        status += ["--", ".", f":(exclude,literal){target.left_out}"]
    place = _git_dir(machine, work)
    if place is None:
        return None
    head, branch = _head(machine, place)
    if target.run is not None:
        changed = _in_machine(target.run, status)
    else:
        changed = _on_host(machine, place, work, status=status, environ=environ)
    log = machine.read(f"{_common(machine, place)}/logs/refs/stash", max_bytes=16 << 20) or b""
    return Git(
        head=head,
        branch=branch,
        dirty=-1 if changed is None else len(changed),
        changed=(changed or [])[:_MAX_CHANGED_PATHS],
        stashes=log.count(b"\n"),
    )


def _git_dir(machine: RootedReader, work: str) -> str | None:
    """Return the git directory: .git, or the one that a .git file of a worktree names."""
    place = f"{work}/.git"
    text = machine.text(place)
    if text.startswith("gitdir: "):
        place = _resolve_from(work, text.removeprefix("gitdir: ").strip())
    return place if machine.read(f"{place}/HEAD", max_bytes=1000) is not None else None


def _common(machine: RootedReader, git_dir: str) -> str:
    """Return the directory that the worktrees of a repository share."""
    text = machine.text(f"{git_dir}/commondir").strip()
    return _resolve_from(git_dir, text) if text else git_dir


def _resolve_from(base: str, path: str) -> str:
    return path if path.startswith("/") else f"{base}/{path}"


def _head(machine: RootedReader, git_dir: str) -> tuple[str, str]:
    """Return the commit ("" before the first) and the branch ("" if detached)."""
    text = (
        (machine.read(f"{git_dir}/HEAD", max_bytes=1000) or b"").decode("utf-8", "replace").strip()
    )
    if not text.startswith("ref: "):
        return (text if _OID.match(text) else ""), ""
    ref = text.removeprefix("ref: ").strip()
    if not _REF.match(ref) or ".." in ref:
        return "", ""
    common = _common(machine, git_dir)
    oid = machine.text(f"{common}/{ref}").strip()
    if not _OID.match(oid):
        packed = machine.text(f"{common}/packed-refs").splitlines()
        oid = next((line.split(" ")[0] for line in packed if line.endswith(f" {ref}")), "")
    return (oid if _OID.match(oid) else ""), ref.removeprefix("refs/heads/")


def _in_machine(run: RunCommand, status: Sequence[str]) -> list[str] | None:
    result = run(["git", *status], env=_SAFE_GIT_ENV, timeout=_GIT_TIMEOUT_SECONDS)
    return _parse_status(result.stdout) if result.exit_code == 0 else None


def _on_host(
    machine: RootedReader,
    git_dir: str,
    work: str,
    *,
    status: Sequence[str],
    environ: Mapping[str, str],
) -> list[str] | None:
    """Return the changed paths, or None if git is missing or fails."""
    head = machine.read(f"{git_dir}/HEAD", max_bytes=1000) or b""
    config = machine.text(f"{_common(machine, git_dir)}/config")
    program = shutil.which("git", path=environ.get("PATH", os.defpath))
    git, common = machine.resolve(git_dir), machine.resolve(_common(machine, git_dir))
    if program is None or git is None or common is None:
        return None
    known = {name: environ[name] for name in ("HOME", "XDG_CONFIG_HOME") if name in environ}
    env = {"PATH": environ.get("PATH", os.defpath), **known, **_SAFE_GIT_ENV}
    with TemporaryDirectory(prefix="ortet-git-") as own:
        try:
            _make_git_dir(Path(own), git, common, head=head, config=config)
            index = f"{git}/index"
            found = subprocess.run(
                [program, f"--git-dir={own}", f"--work-tree={work}", *status],
                cwd=work,
                env={**env, "GIT_OBJECT_DIRECTORY": f"{common}/objects", "GIT_INDEX_FILE": index},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_GIT_TIMEOUT_SECONDS,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
    return _parse_status(found.stdout.decode("utf-8", "backslashreplace"))


def _make_git_dir(own: Path, git: str, common: str, *, head: bytes, config: str) -> None:
    """Make a git directory with links to refs and excludes of another, and harmless settings."""
    (own / "info").mkdir()
    (own / "objects").mkdir()
    (own / "HEAD").write_bytes(head)
    shared = ("refs", "packed-refs", "reftable", "shallow", "info/exclude")
    for name in shared:
        if os.path.lexists(f"{common}/{name}"):
            (own / name).symlink_to(f"{common}/{name}")
    if not (own / "refs").exists():
        (own / "refs").mkdir()
    sparse = Path(git, "info/sparse-checkout")
    if sparse.exists():
        (own / "info/sparse-checkout").symlink_to(sparse)
    for piece in Path(git).glob("sharedindex.*"):  # of a split index
        (own / piece.name).symlink_to(piece)
    (own / "config").write_text(_safe_config(config))


def _safe_config(config: str) -> str:
    """Return the settings that are safe to keep, as a configuration.

    They are parsed here and not by git. Lines that are not understood are dropped.
    """
    lines, section = ["[core]\n\trepositoryformatversion = 0\n"], ""
    for line in config.splitlines():
        text = line.strip()
        if found := re.match(r"\[([A-Za-z]+)\]", text):
            section = found.group(1).lower()
            text = text[found.end() :].strip()
        elif text.startswith("["):
            section = ""
        key, sign, value = (word.strip() for word in text.partition("="))
        if _SAFE_SETTING.match(f"{section}.{key.lower()}") and _SAFE_VALUE.match(value):
            lines.append(f"[{section}]\n\t{key} = {value if sign else 'true'}\n")
    return "".join(lines)


def _parse_status(porcelain: str) -> list[str]:
    """Parse `git status --porcelain=v2 -z` into lines "XY path"."""
    found = []
    for item in porcelain.split("\0"):
        kind, _, rest = item.partition(" ")
        if kind == "1":
            found.append(f"{rest[:2]} {rest.split(' ', 7)[7]}")
        elif kind == "u":
            found.append(f"{rest[:2]} {rest.split(' ', 9)[9]}")
        elif kind == "?":
            found.append(f"?? {rest}")
    return found
