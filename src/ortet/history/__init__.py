"""Commits, directory trees, branches, diff, merge and transfer between stores.

A commit is a record with a state, parents, a message, a time and an author. A state refers to a
journal, to memory and to a machine image. Every record is an object in `objects`, named by its
hash.

Start with `records.py` (everything that is hashed) and `references.py` (which record refers to
which). `commits.py` reads history. `refs.py` resolves names. `bisect.py` and `graph_layout.py` work
on ids only. The packages are `tree/` (directories), `diff/`, `merge/` and `transfer/` (bundles).

Invariants:
- Records are stored by field position. Fields are only appended, never reordered.
- Equal content has equal ids: a tree does not depend on the order of its changes.
- `references.references` is the only place that knows the references inside a record.
- Objects are stored before the records that refer to them.

This package imports `objects`, `backends`, `_util`, `ids` and `errors`.
"""
