"""URLs of Valkey and Redis servers."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from ortet.errors import Invalid, Refused

_SCHEMES = ("redis", "rediss", "valkey", "valkeys", "unix")
_OPTIONS = ("db", "password_file", "ca_file")
_SPACE = re.compile(r"[A-Za-z0-9._-]{1,200}\Z")


class ValkeyAddress(msgspec.Struct, frozen=True):
    """The address of a server and its login. Its text form does not contain the password."""

    host: str = ""
    port: int = 6379
    path: str = ""  # path of a local socket, instead of host and port
    db: int = 0
    username: str | None = None
    password: str | None = None
    secure: bool = False
    ca_file: str | None = None

    def __repr__(self) -> str:
        return f"<Address {self}>"

    def __str__(self) -> str:
        if self.path:
            return f"unix://{self.path}?db={self.db}"
        scheme = "rediss" if self.secure else "redis"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}/{self.db}"


def parse_valkey_url(url: str) -> ValkeyAddress:
    """Parse redis://[USER:PASSWORD@]HOST[:PORT][/DB] or unix:///PATH. Raise Invalid("bad_url")."""
    try:
        parts = urlsplit(url)
        port, scheme = parts.port, parts.scheme.lower()
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        local = scheme == "unix"
        db = options.get("db") or ("" if local else parts.path.strip("/")) or "0"
        strange = [name for name in options if name not in _OPTIONS]
        if scheme not in _SCHEMES or strange or parts.fragment or not db.isdecimal() or port == 0:
            raise _bad()
        if (local and len(parts.path) < 2) or (not local and not parts.hostname):
            raise _bad()
    except ValueError:
        raise _bad() from None
    password = unquote(parts.password) if parts.password else None
    return ValkeyAddress(
        host="" if local else parts.hostname or "",
        port=port or 6379,
        path=unquote(parts.path) if local else "",
        db=int(db),
        username=unquote(parts.username) if parts.username else None,
        password=_password(options.get("password_file")) or password,
        secure=scheme in ("rediss", "valkeys"),
        ca_file=options.get("ca_file"),
    )


def check_namespace(namespace: str) -> str:
    """Return a valid namespace, which separates the stores on one server; usually a store id.

    Raise Invalid("bad_space") otherwise.
    """
    if not _SPACE.match(namespace):
        raise Invalid("bad_space", f"{namespace[:100]!r}: give letters, digits, '.', '_' or '-'")
    return namespace


def _password(file: str | None) -> str | None:
    if file is None:
        return None
    path = Path(file).expanduser()
    try:
        return path.read_text().strip()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise Refused(
            "no_password", f"the password in {path} cannot be read ({why}): put it there"
        ) from None


def _bad() -> Invalid:
    return Invalid(  # the message does not repeat the URL: it may contain a password
        "bad_url",
        "this is no address of a Valkey or Redis server: write redis://[USER:PASSWORD@]HOST[:PORT]"
        f"[/DB], rediss:// or unix:///PATH, and behind it at most ?{'=…&'.join(_OPTIONS)}=…",
    )
