"""Loggers of the library, for operators of programs that keep a store open.

A module of its own, because importing `logging` takes as long as a short command. A module of the
library calls `get_logger(__name__)` at the place that logs, which is rare, and not at its import.

The levels mean:
- ERROR: an operator must act.
- WARNING: data was damaged, or work was lost or undone.
- INFO: an interrupted operation was completed, or another process was replaced.
- DEBUG: an expected refusal or retry.

A message names ids, branches and counts. It never contains a path of the user's files, a command,
a message or a secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

ROOT_LOGGER = "ortet"


def get_logger(name: str) -> logging.Logger:
    """Return the logger of a module of the library.

    The root logger of the library gets a handler that drops records. Without it, Python would print
    warnings to standard error in programs that configure no logging.
    """
    import logging  # noqa: PLC0415 - the reason is in the docstring of the module

    root = logging.getLogger(ROOT_LOGGER)
    if not root.handlers:
        root.addHandler(logging.NullHandler())
    return logging.getLogger(name)
