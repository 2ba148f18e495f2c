"""Directories and maps, stored as Merkle trees of pages.

Start with `tree.py` (`Trees`: build, patch, look up, walk, compare). It also stores small
key-value maps in the same pages. `page.py` has one page in memory. It loads, stores and caches
pages, and documents where a directory is split.

Invariants:
- Equal entries always give equal pages and equal ids, in any order of changes.
- A patch reads and writes only the pages that it changes, and the pages above them.
- A cached or stored page is never modified. Copy it first.
- Every page has two ids: `oid` for all fields, `cid` for content without times, owners and xattrs.

This package imports `history.records`, `objects`, `_util`, `ids` and `errors`.
"""
