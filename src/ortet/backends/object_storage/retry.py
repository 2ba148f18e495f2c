"""Classifies failures of cloud buckets, retries temporary ones, and translates the others.

Of a provider's message only the error code is shown, because a URL in it may contain a secret.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from ortet.backends.object_storage.url import CREDENTIAL_VARIABLES, BucketAddress
from ortet.errors import Invalid, NotFound, OrtetError, Refused, Unavailable, Unsupported

T = TypeVar("T")

_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.1, 2.0
"""The pause between attempts. It doubles each time."""
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,60})</Code>")
_RETRYABLE_CODES = {"RequestTimeout", "SlowDown", "ConditionalRequestConflict", "OperationAborted"}
_EXISTS = "BlobAlreadyExists"
"""Azure's code, with status 409, for an existing key.

From S3, 409 means that a retry may succeed.
"""
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound"}
_RANGE_ERROR_TEXT = "Wanted range starting at"
"""A message of obstore about an answer that should have had status 416."""
_METADATA = ("169.254.169.254", "metadata.google.internal", "169.254.170.2")


class BucketFailure(NamedTuple):
    """The failure of one attempt."""

    status: int  # 0: no answer
    code: str
    description: str

    @property
    def is_retryable(self) -> bool:
        """Return True if the same call may succeed a moment later."""
        if self.code in _RETRYABLE_CODES or self.status in (408, 429):
            return True
        return self.status in (0, 409) or (self.status >= 500 and self.status != 501)


class KeyAbsent(Exception):
    """The key does not exist."""


class KeyTaken(Exception):
    """The key exists. `is_retry`: an earlier attempt of this call may have created it."""

    def __init__(self, *, is_retry: bool) -> None:
        super().__init__()
        self.is_retry = is_retry


class RangeBeyondEnd(Exception):
    """The range starts after the end of the object."""


def call_with_retry(
    address: BucketAddress, act: str, call: Callable[[], T], *, retry_seconds: float
) -> T:
    """Return the result of `call`, retried for `retry_seconds` while the failure may be temporary.

    The caller translates KeyAbsent, KeyTaken and RangeBeyondEnd. Other failures are raised as our
    errors.
    """
    from obstore.exceptions import BaseError  # noqa: PLC0415 - an extra

    deadline = time.monotonic() + retry_seconds
    wait, again = _FIRST_PAUSE_SECONDS, False
    while True:
        try:
            return call()
        except (BaseError, OSError, ValueError) as error:
            failure = _parse_failure(error)
        if not failure.is_retryable:
            raise _to_exception(failure, address, act, is_retry=again) from None
        if time.monotonic() + wait > deadline:
            raise _bucket_unavailable(failure, address, act) from None
        again = True
        time.sleep(wait)
        wait = min(wait * 2, _MAX_PAUSE_SECONDS)


def _parse_failure(error: Exception) -> BucketFailure:
    text = str(error)
    status, code = _STATUS.search(text), _CODE.search(text)
    number = int(status[1]) if status else _status_of_error_name(type(error).__name__)
    if code and code[1] == _EXISTS:
        number = 412
    if not number and _RANGE_ERROR_TEXT in text:
        number = 416
    words = "it did not answer"
    if any(host in text for host in _METADATA):
        return BucketFailure(401, "NoCredentials", "no credentials")
    if "redirect" in text.lower() and number in (0, 301, 307):
        return BucketFailure(301, code[1] if code else "PermanentRedirect", "a redirect")
    if number:
        words = f"it answered {number}" + (f" {code[1]}" if code else "")
    return BucketFailure(number, code[1] if code else "", words)


def _status_of_error_name(name: str) -> int:
    """Return the HTTP status for an exception of obstore that has no number."""
    known = {"FileNotFoundError": 404, "AlreadyExistsError": 412, "PermissionDeniedError": 403}
    known |= {"UnauthenticatedError": 401, "InvalidPathError": 400, "NotSupportedError": 501}
    return known.get(name, 0)


def _to_exception(
    failure: BucketFailure, address: BucketAddress, act: str, *, is_retry: bool
) -> Exception:
    status, code = failure.status, failure.code
    if status == 404 and code not in _NO_BUCKET:
        return KeyAbsent()
    if status == 412:
        return KeyTaken(is_retry=is_retry)
    if status == 416:
        return RangeBeyondEnd()
    return _refusal(failure, address, act)


def _refusal(failure: BucketFailure, address: BucketAddress, act: str) -> OrtetError:
    name = f"{address.scheme}://{address.bucket}"
    if failure.code in _NO_BUCKET:
        return NotFound(
            "no_bucket", f"there is no bucket {name}: create it, or correct the address (bucket=)"
        )
    if failure.code == "NoCredentials":
        return Refused(
            "no_credentials",
            f"no credentials for {name} were found: set {CREDENTIAL_VARIABLES[address.scheme]}",
        )
    if failure.status in (401, 403):
        return Refused(
            "no_access",
            f"{name} refused to {act} ({failure.description}): set "
            f"{CREDENTIAL_VARIABLES[address.scheme]} of someone "
            "who may list it and get, put and delete objects, and check this host's clock",
        )
    if failure.status in (301, 307):
        return Refused("wrong_region", f"{name} is in another region: add ?region=NAME")
    if failure.status == 501:
        return Unsupported(
            "bucket_too_simple",
            f"{name} cannot {act} ({failure.description}): use a server that can create an object "
            "only "
            "where there is none (If-None-Match)",
        )
    return Invalid(
        "bucket_refused",
        f"{name} did not take it to {act} ({failure.description}): check the address and the "
        "region",
    )


def _bucket_unavailable(failure: BucketFailure, address: BucketAddress, act: str) -> Unavailable:
    where = f" at {address.endpoint}" if address.endpoint else ""
    return Unavailable(
        "bucket_unavailable",
        f"could not {act}: {address.scheme}://{address.bucket}{where} is not well "
        f"({failure.description}); nothing is lost: check that it can be reached, then repeat",
    )
