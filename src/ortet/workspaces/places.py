"""Checks of directories: a workspace must be on the host and outside the store."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ortet._util.validation import PATH, require
from ortet.errors import Invalid, NotFound

SECRET_PATHS = (
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".config/gcloud",
    ".config/gh",
    ".config/ortet",
    ".kube",
    ".docker/config.json",
    ".netrc",
    ".git-credentials",
    ".local/share/keyrings",
)
"""Paths with credentials, relative to the home directory, that are hidden from commands."""

_VIEW = re.compile(r"/proc/[^/]+/(?:root|cwd)(?:/|$)")


def real_path(path: str | os.PathLike[str]) -> Path:
    """Return the path without symbolic links.

    Raises:
        Invalid: "inside_machine" for a path under /proc/PID/root or cwd, where links would lead to
            files of the host.
    """
    require(PATH, path=path)
    full = os.path.abspath(os.fsdecode(path))
    if _VIEW.match(full):
        raise Invalid(
            "inside_machine", f"{full} is a view into a machine: give a directory of the host"
        )
    return Path(os.path.realpath(full))


def existing_directory(path: str | os.PathLike[str]) -> Path:
    """Return the real path of an existing directory.

    Raise Invalid or NotFound for anything else.
    """
    require(PATH, path=path)
    if os.path.isdir(path):
        return real_path(path)
    if os.path.exists(path):
        raise Invalid("no_directory", f"{path} is a file: give the directory it is in")
    text = os.fsdecode(path)
    raise NotFound("no_directory", f"there is no directory {text[:200]}: create it first")


def check_outside_store(store: Path, directory: Path) -> Path:
    """Return the directory. Raise Invalid if it and the store overlap."""
    store = store.resolve()
    if store == directory or directory in store.parents or store in directory.parents:
        raise Invalid(
            "store_in_workspace",
            f"the store {store} and the directory {directory} overlap, so an agent's clean-up "
            "could delete history; put the store elsewhere (ORTET_URL, or `ortet init --store`), "
            "or give another directory",
        )
    return directory
