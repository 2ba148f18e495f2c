"""Every error Ortet raises. The class says what the caller does; `kind` says which case it is."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple


class OrtetError(Exception):
    """Base of all. `kind` is an append-only machine code; the message says what to do next."""

    name: ClassVar[str] = "error"

    def __init__(self, kind: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.details = details

    def as_dict(self) -> dict[str, Any]:
        """The one shape errors have on every surface."""
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
    """The world moved since the caller last looked: look again, then repeat the call."""

    name = "conflict"


class Invalid(OrtetError):
    """The request itself is wrong: change it."""

    name = "invalid"


class Refused(OrtetError):
    """A lease, policy, quota or budget says no."""

    name = "refused"


class Unavailable(OrtetError):
    """Something needed is not there at the moment: the same call may work later."""

    name = "unavailable"


class Corrupt(OrtetError):
    """Stored data does not match its hash or checksum: never retry, restore from a copy."""

    name = "corrupt"


class Unsupported(OrtetError):
    """This host, engine or version cannot do it."""

    name = "unsupported"


class Diverged(Conflict):
    """A replay met an action that the record does not hold."""

    name = "diverged"


class Unsettled(Conflict):
    """An action was begun and its outcome is not known."""

    name = "unsettled"


class RecordedFailure(Conflict):
    """An action failed when it was recorded, with an error that cannot be made again."""

    name = "recorded_failure"


class Code(NamedTuple):
    status: int
    exit_code: int


# The one table from class to HTTP status and process exit code. Exit 1 is left for bugs.
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
    """HTTP status and exit code of an error; anything that is not ours is a bug (500, 1)."""
    for cls in type(error).__mro__:
        if cls in CODES:
            return CODES[cls]
    return Code(500, 1)
