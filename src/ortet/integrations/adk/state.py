"""State of apps and users, which their sessions share: one row a key, so that two processes that
set different keys at once do not hinder one another, and of one key the last one counts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from google.adk.sessions.state import State

from ortet._util.codec import checksum
from ortet.backends.base import Catalog, RowChange


class ScopedState(NamedTuple):
    """By who it is for; what is for the present run alone is in none."""

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
    """To be written with the event that they are of."""
    found = [_row(_kind(app), key, value) for key, value in state.app.items()]
    return found + [_row(_kind(app, user), key, value) for key, value in state.user.items()]


def shared_state(catalog: Catalog, app: str, user: str) -> dict[str, Any]:
    """What a session sees of both, with prefixes."""
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
