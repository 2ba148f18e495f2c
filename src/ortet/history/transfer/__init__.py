"""Transfer of commits between stores: bundle files and direct copies.

Start with `bundle.py` (`export_bundle`, `import_bundle`) and `copy_missing.py` (store to store).
`bundle_file.py` has the file format, its reader, the writer of a bundle that can be resumed, and
the limits of what an import may use.

Invariants:
- An import stores nothing before the whole bundle is verified.
- Both kinds of transfer can be interrupted and repeated.
- Objects are written before the objects that refer to them.
- An object that was erased in the target is not stored again.

This package imports the rest of `history`, `objects`, `_util`, `ids` and `errors`.
"""
