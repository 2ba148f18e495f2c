"""Merges the hardlink groups of an upper directory with those of the lower layers.

This is a module of its own because redirects of renamed directories make it an algorithm of its
own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from ortet.machines.capture.hardlinks import join_path
from ortet.machines.overlay.upper.uppernode import UpperDirectory


def merge_hardlink_groups(
    root: UpperDirectory, linked: Mapping[bytes, int], below: Sequence[Sequence[bytes]]
) -> list[list[bytes]]:
    """Return the hardlink groups of the merged directory.

    `linked` maps the files of the upper directory with several names from path to inode.
    """
    found: dict[int, list[bytes]] = {}
    for path, inode in linked.items():
        found.setdefault(inode, []).append(path)
    groups = [sorted(paths) for paths in found.values()]
    if below:
        moved = [node for node in root.walk() if node.marks is not None and node.marks[1]]
        for names in below:
            shown = (_visible_path(path, (root, *moved)) for path in names)
            groups.append(sorted(path for path in shown if path is not None))
    return sorted(group for group in groups if len(group) > 1)


def _visible_path(path: bytes, starts: Sequence[UpperDirectory]) -> bytes | None:
    """Return the merged path of a file of the lower layers, or None if it is covered."""
    for start in starts:
        if start.origin is None or not path.startswith(start.origin):
            continue
        rest = path[len(start.origin) :].lstrip(b"/") if start.origin else path
        found = _descend(start, rest)
        if found is not None:
            return found
    return None


def _descend(node: UpperDirectory, rest: bytes) -> bytes | None:
    """Return the merged path of a file below a directory, or None if it is covered."""
    while True:
        raw, _, after = rest.partition(b"/")
        name = os.fsdecode(raw)
        if name in node.files or name in node.whiteouts or name in node.skipped:
            return None
        child = node.dirs.get(name)
        if child is None:
            return join_path(node.path, rest)
        assert node.origin is not None
        if child.origin != join_path(node.origin, raw):
            return None
        node, rest = child, after
