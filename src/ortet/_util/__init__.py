"""Helpers without business logic that every layer may use.

Start with:

- `codec`: canonical encoding, hashing and compression of everything that is stored.
- `validation`: checks of the arguments that callers pass to public methods.
- `failpoints`: named points at which a test can kill the process or fill the disk.
- `fork_safety`: hooks that close or reset resources around `fork(2)`.
- `log`: the loggers of the library, and what their levels mean.
- `lock_timeout`: the time limit for waiting on a locked store.
- `structs`: thread-safe preparation of msgspec types.

Invariants: the only process-wide state is what a hook or a context variable needs. Only
`failpoints` reads an environment variable, ORTET_FAULT.

This package imports `ortet.errors`, `ortet.ids` and third-party packages, and nothing else of
Ortet.
"""
