"""Exceptions that Ortet raises, and their HTTP status and process exit codes.

The class tells the caller how to react. `kind` names the exact case. Every error of Ortet is an
`OrtetError`.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple


class OrtetError(Exception):
    """Base class of all errors of Ortet.

    Attributes:
        kind: A stable code for programs, such as "lease_held". Codes are only added, never changed.
        message: One line for people: what happened and what to do next.
        details: Extra values for programs. The keys depend on `kind`.
    """

    name: ClassVar[str] = "error"

    def __init__(self, kind: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.details = details

    def as_dict(self) -> dict[str, Any]:
        """Return the error as plain data, in the same form on every surface (CLI, HTTP, MCP)."""
        return {
            "error": self.name,
            "kind": self.kind,
            "message": self.message,
            "details": self.details,
        }


class NotFound(OrtetError):
    """The named thing does not exist."""

    name = "not_found"


class Conflict(OrtetError):
    """The state changed since the caller last read it. Read again, then retry the call."""

    name = "conflict"


class Invalid(OrtetError):
    """The request itself is wrong. Change it before a retry."""

    name = "invalid"


class Refused(OrtetError):
    """A lease, policy, quota or budget forbids the call."""

    name = "refused"


class Unavailable(OrtetError):
    """A required service or resource is not available now. The same call may succeed later."""

    name = "unavailable"


class Corrupt(OrtetError):
    """Stored data does not match its hash or checksum. Do not retry; restore from a copy."""

    name = "corrupt"


class Unsupported(OrtetError):
    """This host, engine or version does not support the call."""

    name = "unsupported"


class Diverged(Conflict):
    """A replay reached an action that is not in the recorded run."""

    name = "diverged"


class Unsettled(Conflict):
    """An action has started and its outcome is unknown. `s.actions.settle` records the outcome."""

    name = "unsettled"


class NotDone(Exception):
    """Raised by the function of an action: nothing happened, so the action may run again.

    Any other exception of a `once` action leaves it unsettled, because an error after the effect
    looks like an error before it. NotDone reaches the caller of `act` as it was raised.
    """


class RecordedFailure(Conflict):
    """An action failed in the recorded run with an error that cannot be rebuilt from the record."""

    name = "recorded_failure"


class Code(NamedTuple):
    """HTTP status and process exit code of one error class."""

    status: int
    exit_code: int


# Map from error class to HTTP status and exit code. Exit code 1 is reserved for bugs.
CODES: dict[type[OrtetError], Code] = {
    NotFound: Code(404, 4),
    Conflict: Code(409, 5),
    Invalid: Code(422, 2),
    Refused: Code(403, 6),
    Unavailable: Code(503, 7),
    Corrupt: Code(500, 8),
    Unsupported: Code(501, 9),
}


def code_of(error: BaseException) -> Code:
    """Return the HTTP status and exit code of an error.

    Any exception that is not an `OrtetError` is a bug: (500, 1).
    """
    for cls in type(error).__mro__:
        if cls in CODES:
            return CODES[cls]
    return Code(500, 1)
