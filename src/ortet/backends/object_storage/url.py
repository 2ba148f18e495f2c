"""URLs of cloud buckets, and the obstore client for one."""
# ruff: noqa: PLC0415 - obstore is an extra, and slow to load

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from ortet.errors import Invalid, Unsupported

if TYPE_CHECKING:
    from obstore.store import ObjectStore

BUCKET_SCHEMES = ("s3", "gs", "az")
_OPTIONS = {"s3": ("endpoint", "region"), "gs": ("endpoint",), "az": ("endpoint", "account")}
CREDENTIAL_VARIABLES = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
"""Environment variables from which obstore takes credentials. Each cloud also has others."""
_SETTINGS = {"s3": "AWS_REGION and AWS_ENDPOINT_URL", "gs": "GOOGLE_BASE_URL"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}\Z")
_PART = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._=-]{1,100}\Z")
_MAX_PREFIX_PARTS = 8
_CONNECT_TIMEOUT_SECONDS = 10


class BucketAddress(msgspec.Struct, frozen=True):
    """A bucket and the prefix of its keys. Contains no secret; those are in the environment."""

    scheme: str
    bucket: str
    prefix: str = ""  # empty, or ends in a slash
    endpoint: str = ""
    region: str = ""
    account: str = ""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.prefix}".rstrip("/")


def parse_bucket_url(url: str) -> BucketAddress:
    """Parse s3://BUCKET[/PREFIX][?endpoint=…&region=…], gs:// or az://.

    Raise Invalid("bad_url").
    """
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        secret = parts.username is not None or parts.password is not None
        port = parts.port
    except ValueError:
        raise _bad() from None
    scheme, folders = parts.scheme.lower(), unquote(parts.path).strip("/").split("/")
    if secret or any("key" in name or "secret" in name or "token" in name for name in options):
        raise Invalid(  # the message does not repeat the secret
            "bad_url",
            "the address of a bucket holds no credentials, which would be seen in logs: leave them "
            f"in the environment ({CREDENTIAL_VARIABLES.get(scheme, CREDENTIAL_VARIABLES['s3'])})",
        )
    if scheme not in BUCKET_SCHEMES or parts.fragment or port is not None:
        raise _bad()
    if any(name not in _OPTIONS[scheme] for name in options) or not _NAME.match(parts.netloc):
        raise _bad()
    if folders == [""]:
        folders = []
    if len(folders) > _MAX_PREFIX_PARTS or not all(_PART.match(part) for part in folders):
        raise _bad()
    prefix = "".join(f"{part}/" for part in folders)
    return BucketAddress(scheme, parts.netloc, prefix, **_check_options(options))


def _check_options(options: dict[str, str]) -> dict[str, str]:
    endpoint = options.get("endpoint")
    if endpoint is not None:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise _bad()
    return options


def _bad() -> Invalid:
    return Invalid(
        "bad_url",
        "this is no address of a bucket: write s3://BUCKET/PREFIX, and behind it at most "
        "?endpoint=https://HOST:PORT&region=NAME; or gs://BUCKET/PREFIX, with ?endpoint=…, or "
        "az://CONTAINER/PREFIX, with ?account=NAME&endpoint=…",
    )


def open_object_store(
    address: BucketAddress, *, read_timeout: float, timeout: float
) -> ObjectStore:
    """Open an obstore client without retries. Credentials are found as by the tools of the cloud.

    Args:
        address: The parsed URL.
        read_timeout: The longest time in seconds without receiving any data.
        timeout: The longest time in seconds of a whole call.
    """
    try:
        from obstore.exceptions import BaseError
        from obstore.store import AzureStore, GCSStore, S3Store
    except ImportError as error:
        raise Unsupported(
            "extra_missing",
            f'a store at {address.scheme}:// needs obstore: pip install "ortet[s3]"',
        ) from error
    client: dict[str, Any] = {
        "timeout": timedelta(seconds=timeout),
        "read_timeout": timedelta(seconds=read_timeout),
        "connect_timeout": timedelta(seconds=min(_CONNECT_TIMEOUT_SECONDS, read_timeout)),
    }
    endpoint = "base_url" if address.scheme == "gs" else "endpoint"
    options = {endpoint: address.endpoint, "region": address.region}
    options["account_name"] = address.account
    config: dict[str, Any] = {name: value for name, value in options.items() if value}
    if address.endpoint.startswith("http://"):
        client["allow_http"] = True
    retry = {"max_retries": 0, "retry_timeout": timedelta(seconds=timeout)}
    common: dict[str, Any] = {"client_options": client, "retry_config": retry}
    try:
        if address.scheme == "s3":
            return S3Store(address.bucket, **config, **common)
        if address.scheme == "gs":
            return GCSStore(address.bucket, **config, **common)
        return AzureStore(address.bucket, **config, **common)
    except (BaseError, ValueError, TypeError):
        raise Invalid("bad_bucket", _settings_hint(address)) from None


def _settings_hint(address: BucketAddress) -> str:
    """Return a hint that omits the library's message, which may contain environment values."""
    what = f"{address} cannot be opened with the settings of this environment"
    keys = CREDENTIAL_VARIABLES[address.scheme]
    if address.scheme == "az" and not address.account:
        name, _, key = keys.partition(" and ")
        return f"{what}: name the account by ?account=NAME or {name}, and set {key}"
    settings = _SETTINGS.get(address.scheme)
    return f"{what}: check {keys}" + (f", {settings}" if settings else "")
