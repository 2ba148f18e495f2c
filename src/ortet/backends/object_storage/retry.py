"""Calls to a bucket in the cloud: which failures are worth another attempt, and what the others
mean. Nothing of a provider's own message is repeated but its code: an address may hold a secret."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from ortet.backends.object_storage.url import KEYS, Address
from ortet.errors import Invalid, NotFound, OrtetError, Refused, Unavailable, Unsupported

T = TypeVar("T")

_FIRST, _LONGEST = 0.1, 2.0
"""Seconds between attempts, doubled each time."""
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_AGAIN_CODES = {"RequestTimeout", "SlowDown", "ConditionalRequestConflict", "OperationAborted"}
_EXISTS = "BlobAlreadyExists"
"""What Azure says with 409, which from S3 means that the same call may do later."""
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound"}
_BEYOND = "Wanted range starting at"
"""Words of obstore itself, about an answer that should have been 416."""
_METADATA = ("169.254.169.254", "metadata.google.internal", "169.254.170.2")


class Failure(NamedTuple):
    """What went wrong with one attempt, as far as it was told."""

    status: int  # 0: there was no answer
    code: str
    words: str

    @property
    def is_passing(self) -> bool:
        """Whether the same call may succeed a moment later."""
        if self.code in _AGAIN_CODES or self.status in (408, 429):
            return True
        return self.status in (0, 409) or (self.status >= 500 and self.status != 501)


class Absent(Exception):
    """There is no such key."""


class Taken(Exception):
    """There is such a key; `again`: an earlier attempt of ours may have made it."""

    def __init__(self, *, again: bool) -> None:
        super().__init__()
        self.again = again


class Beyond(Exception):
    """The object ends before the range begins."""


def attempt(address: Address, act: str, call: Callable[[], T], *, patience: float) -> T:
    """What the call gives, repeated for `patience` seconds while it may yet succeed.

    Absent, Taken and Beyond are for the caller to put in the words of its verb.
    """
    from obstore.exceptions import BaseError  # noqa: PLC0415 - an extra

    deadline = time.monotonic() + patience
    wait, again = _FIRST, False
    while True:
        try:
            return call()
        except (BaseError, OSError, ValueError) as error:
            failure = _told(error)
        if not failure.is_passing:
            raise _meaning(failure, address, act, again=again) from None
        if time.monotonic() + wait > deadline:
            raise _silent(failure, address, act) from None
        again = True
        time.sleep(wait)
        wait = min(wait * 2, _LONGEST)


def _told(error: Exception) -> Failure:
    text = str(error)
    status, code = _STATUS.search(text), _CODE.search(text)
    number = int(status[1]) if status else _guessed(type(error).__name__)
    if code and code[1] == _EXISTS:
        number = 412
    if not number and _BEYOND in text:
        number = 416
    words = "it did not answer"
    if any(host in text for host in _METADATA):
        return Failure(401, "NoCredentials", "no credentials")
    if "redirect" in text.lower() and number in (0, 301, 307):
        return Failure(301, code[1] if code else "PermanentRedirect", "a redirect")
    if number:
        words = f"it answered {number}" + (f" {code[1]}" if code else "")
    return Failure(number, code[1] if code else "", words)


def _guessed(name: str) -> int:
    """Where obstore tells the kind of failure and no number."""
    known = {"FileNotFoundError": 404, "AlreadyExistsError": 412, "PermissionDeniedError": 403}
    known |= {"UnauthenticatedError": 401, "InvalidPathError": 400, "NotSupportedError": 501}
    return known.get(name, 0)


def _meaning(failure: Failure, address: Address, act: str, *, again: bool) -> Exception:
    status, code = failure.status, failure.code
    if status == 404 and code not in _NO_BUCKET:
        return Absent()
    if status == 412:
        return Taken(again=again)
    if status == 416:
        return Beyond()
    return _refusal(failure, address, act)


def _refusal(failure: Failure, address: Address, act: str) -> OrtetError:
    name = f"{address.scheme}://{address.bucket}"
    if failure.code in _NO_BUCKET:
        return NotFound(
            "no_bucket", f"there is no bucket {name}: create it, or correct the address (bucket=)"
        )
    if failure.code == "NoCredentials":
        return Refused(
            "no_credentials",
            f"no credentials for {name} were found: set {KEYS[address.scheme]}",
        )
    if failure.status in (401, 403):
        return Refused(
            "no_access",
            f"{name} refused to {act} ({failure.words}): set {KEYS[address.scheme]} of someone "
            "who may list it and get, put and delete objects, and check this host's clock",
        )
    if failure.status in (301, 307):
        return Refused("wrong_region", f"{name} is in another region: add ?region=NAME")
    if failure.status == 501:
        return Unsupported(
            "bucket_too_simple",
            f"{name} cannot {act} ({failure.words}): use a server that can create an object only "
            "where there is none (If-None-Match)",
        )
    return Invalid(
        "bucket_refused",
        f"{name} did not take it to {act} ({failure.words}): check the address and the region",
    )


def _silent(failure: Failure, address: Address, act: str) -> Unavailable:
    where = f" at {address.endpoint}" if address.endpoint else ""
    return Unavailable(
        "bucket_unavailable",
        f"could not {act}: {address.scheme}://{address.bucket}{where} is not well "
        f"({failure.words}); nothing is lost: check that it can be reached, then repeat",
    )
