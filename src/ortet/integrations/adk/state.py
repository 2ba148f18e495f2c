"""State of apps and users, shared by their sessions, in one catalog row for each key.

Processes that set different keys do not conflict. For one key the last write wins.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from google.adk.sessions.state import State

from ortet._util.codec import checksum
from ortet.backends.base import Catalog, RowChange


class ScopedState(NamedTuple):
    """State by scope. Temporary state of one run is left out."""

    app: dict[str, Any]
    user: dict[str, Any]
    session: dict[str, Any]


def split_state(state: Mapping[str, Any]) -> ScopedState:
    found = ScopedState({}, {}, {})
    for key, value in state.items():
        if key.startswith(State.APP_PREFIX):
            found.app[key.removeprefix(State.APP_PREFIX)] = value
        elif key.startswith(State.USER_PREFIX):
            found.user[key.removeprefix(State.USER_PREFIX)] = value
        elif not key.startswith(State.TEMP_PREFIX):
            found.session[key] = value
    return found


def changes(app: str, user: str, state: ScopedState) -> list[RowChange]:
    """Return the row changes, to write in one transaction with their event."""
    found = [_row(_kind(app), key, value) for key, value in state.app.items()]
    return found + [_row(_kind(app, user), key, value) for key, value in state.user.items()]


def shared_state(catalog: Catalog, app: str, user: str) -> dict[str, Any]:
    """Return the app and user state that a session sees, with key prefixes."""
    of_app = {
        State.APP_PREFIX + key: value for key, value in _read_rows(catalog, _kind(app)).items()
    }
    return of_app | {State.USER_PREFIX + k: v for k, v in user_state(catalog, app, user).items()}


def user_state(catalog: Catalog, app: str, user: str) -> dict[str, Any]:
    return _read_rows(catalog, _kind(app, user))


def _read_rows(catalog: Catalog, kind: str) -> dict[str, Any]:
    found, after = list[tuple[str, Any]](), ""
    while page := catalog.rows(kind, after):
        found += [tuple(json.loads(row.value)) for row in page]
        after = page[-1].key
    return dict(sorted(found))


def _row(kind: str, key: str, value: Any) -> RowChange:
    return RowChange(kind, _digest(key), json.dumps([key, value]).encode())


def _kind(*ids: str) -> str:
    return "/".join(["adk", *map(_digest, ids)])


def _digest(text: str) -> str:
    return checksum(text.encode("utf-8", "surrogatepass")).hex()
