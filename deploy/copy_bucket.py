"""copy_bucket.py SOURCE TARGET: copies the objects that the target lacks. Addresses are those of
bucket=, not encoded; a directory is file:///DIRECTORY. An object never changes, none is deleted."""

from __future__ import annotations

import sys

from ortet.backends.buckets import open_bucket

AT_ONCE = 16
"""Objects that are in memory at once."""


def main(source: str, target: str) -> None:
    one, other = open_bucket(source), open_bucket(target)
    there = {found.key for found in other.list()}
    missing = [found.key for found in one.list() if found.key not in there]
    for first in range(0, len(missing), AT_ONCE):
        other.put_all(one.get_all(missing[first : first + AT_ONCE]))
    sys.stdout.write(f"{len(missing)} objects copied, {len(there)} were there\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
