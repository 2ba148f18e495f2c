"""Translates errors of PostgreSQL into ours."""

from __future__ import annotations

from typing import Any

import msgspec
import psycopg

from ortet.backends import errors
from ortet.backends.base import Lease
from ortet.errors import Conflict, Corrupt, Invalid, OrtetError, Refused, Unavailable, Unsupported
from ortet.ids import Oid

ORTET_SQLSTATE = "OR001"
"""The SQLSTATE with which our SQL functions refuse. The message is the kind, the detail is JSON."""
NO_PARTITION = "23514"
_UNDEFINED_OBJECT_SQLSTATES = ("42883", "42P01", "42703", "3F000")
_RETRYABLE_SQLSTATES = ("40001", "40P01")
_CONNECTION_LOST_SQLSTATES = ("08", "57P", "25P03", "25P04")
"""States of a lost connection, a server shutdown or start, a failover, or an idle timeout."""
_CANCELLED = "57014"
_READ_ONLY = ("25006",)
BAD_OPTION_HINT = (
    "correct that option; if it is one of the bucket or of Valkey, write their addresses "
    "percent-encoded, with %3F for ? and %26 for &"
)
CONNECT_HINT = (
    "check that PostgreSQL runs there, has this database, and lets this host and user in "
    "(pg_hba.conf); a password is in ~/.pgpass, PGPASSWORD or &passfile=PATH"
)
_TOO_MANY_CONNECTIONS_WORDS = ("connection slots", "too many clients", "too many connections")
"""Messages, without an SQLSTATE, for a connection that was refused because there are too many."""
_TOO_MANY_CONNECTIONS_HINT = (
    "all its connections are taken: lower connections= in the addresses of the store, end what "
    "holds others, or raise max_connections"
)


def connection_hint(why: str) -> str:
    """Return what the user can do about a failed connection."""
    return (
        _TOO_MANY_CONNECTIONS_HINT
        if any(words in why for words in _TOO_MANY_CONNECTIONS_WORDS)
        else CONNECT_HINT
    )


def is_lost(error: psycopg.Error) -> bool:
    """Return True if it is unknown whether the statement was executed."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError)
    return state.startswith(_CONNECTION_LOST_SQLSTATES) or state in _READ_ONLY


def is_collision(error: psycopg.Error) -> bool:
    """Return True if transactions collided. Nothing was written, so a retry is safe."""
    return error.sqlstate in _RETRYABLE_SQLSTATES


def database_gone(place: str, error: object) -> Unavailable:
    """Return the error for a database that cannot be reached."""
    why = " ".join(str(error).split())
    return Unavailable(
        "database_gone",
        f"the database {place} cannot be reached ({why}): {connection_hint(why)}; then try again",
    )


def connections_exhausted(place: str, most: int) -> Unavailable:
    """Return the error for a pool without a free connection."""
    return Unavailable(
        "busy",
        f"all {most} connections of this process to {place} are in use: try again in a moment, or "
        "add connections=N to the address",
    )


def translate_postgres_error(
    error: psycopg.Error, place: str, lease: Lease | None = None
) -> OrtetError:
    """Return our error for an error of PostgreSQL or a refusal of our SQL functions.

    `lease` is the lease that the caller passed.
    """
    state = error.sqlstate or ""
    if state == ORTET_SQLSTATE:
        values = msgspec.json.decode(error.diag.message_detail or "{}")
        return _translate_refusal(error.diag.message_primary or "", values, lease)
    if is_lost(error):
        return database_gone(place, error)
    if is_collision(error) or state.startswith("55P"):
        return Unavailable(
            "busy", f"others write the same rows of {place} at this moment: try again in a moment"
        )
    if state == _CANCELLED:
        return Unavailable(
            "busy",
            f"{place} has ended a statement that was under way ({error}): try again; where it "
            "takes longer than the server allows, have its statement_timeout raised for this user",
        )
    if state in _UNDEFINED_OBJECT_SQLSTATES:
        return Unsupported(
            "newer_format",
            f"{place} was changed by a newer Ortet while this one was at work ({error}): upgrade "
            "Ortet and open the store again",
        )
    if state.startswith("53"):
        return Unavailable(
            "disk_full", f"{place} has no room left ({error}): give the database more, try again"
        )
    if state.startswith("42501") or state.startswith("28"):
        why = error.diag.message_primary or error
        return Refused(
            "no_access",
            f"{place} does not let us in ({why}): `ortet doctor` says which right is missing, and "
            "how who runs it gives it",
        )
    if state.startswith("22") or isinstance(error, psycopg.DataError):
        return Invalid("bad_value", f"PostgreSQL cannot keep this ({error}): change it")
    if state.startswith("XX"):
        return Corrupt(
            "catalog_damaged",
            f"{place} is damaged ({error}): restore the database from a copy; the objects are not "
            "touched by this",
        )
    return OrtetError("postgres", f"{place}: {error}: please report this as a bug of Ortet")


def _translate_refusal(kind: str, values: dict[str, Any], lease: Lease | None) -> OrtetError:
    timeline = values.get("timeline", "").replace("-", "")
    match kind:
        case "head_moved":
            expect, actual = values["expect"], values["found"]
            return errors.head_moved(values["name"], _oid(expect), _oid(actual))
        case "row_moved":
            return errors.row_moved(
                values["kind"], values["key"], values["expect"], values["found"]
            )
        case "lease_held":
            return errors.lease_held(
                Lease(values["name"], values["owner"], values["fence"], values["expires"])
            )
        case "lease_lost" if lease is not None:
            return errors.lease_lost(lease)
        case "no_timeline":
            return errors.no_timeline(timeline)
        case "seq_taken":
            return errors.seq_taken(timeline, values["expect"], values["found"])
        case "bad_fork":
            return errors.bad_fork(timeline, values["at"])
        case "timeline_exists":
            return errors.timeline_exists(timeline)
        case "has_children":
            return errors.has_children(timeline)
        case "swept":
            return Conflict(
                "swept",
                "the store was swept while this was being written: nothing was, repeat the call",
                epoch=values["epoch"],
            )
    return OrtetError("postgres", f"{kind} {values}: please report this as a bug of Ortet")


def _oid(text: str | None) -> Oid | None:
    return None if text is None else Oid(bytes.fromhex(text))
