"""Who is asking, and whether it may: tokens, the page's cookie, and requests of foreign pages."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

import msgspec
from starlette.requests import HTTPConnection

from ortet.errors import OrtetError, Refused
from ortet.surface.http.tokens import OWNER, Caller, Tokens

COOKIE = "ortet"
_SAFE = ("GET", "HEAD", "OPTIONS")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Unknown(OrtetError):
    """Nobody knows who asks: 401, which is not one of the store's errors."""

    name = "unauthorized"


class Policy(msgspec.Struct, frozen=True):
    """`hosts` are the names under which the server may be asked for; with none, any: a page of
    another site that has the server's address under its own name must not get through. `open_`:
    no token is asked for, on loopback."""

    hosts: tuple[str, ...] = ()
    open_: bool = False
    may_run: bool = False  # any token that may write runs commands on this host


class Gate:
    def __init__(self, tokens: Tokens, policy: Policy) -> None:
        self._tokens = tokens
        self.policy = policy

    def caller(self, asking: HTTPConnection) -> Caller:
        """Whoever asks; Unknown, or Refused for a page of another site. Blocking: it reads rows."""
        self._check_host(asking)
        scheme, _, token = asking.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and token:
            return self._known(token.strip())
        self._check_origin(asking)
        if cookie := asking.cookies.get(COOKIE):
            return self._known(cookie)
        if self.policy.open_:
            return OWNER
        raise Unknown(
            "no_token",
            "say who you are: Authorization: Bearer TOKEN; `ortet access create` makes one",
        )

    def _known(self, token: str) -> Caller:
        found = self._tokens.caller(token)
        if found is None:
            raise Unknown("bad_token", "this token is unknown, revoked or out of time: get another")
        if self.policy.may_run and found.may("write"):
            return msgspec.structs.replace(found, runs=True)
        return found

    def _check_host(self, asking: HTTPConnection) -> None:
        name = host_name(asking.headers.get("host", ""))
        if self.policy.hosts and name not in self.policy.hosts:
            raise Refused(
                "bad_host",
                f"this server is not {name!r}: use its own name, or start it with --allow-host",
            )

    def _check_origin(self, asking: HTTPConnection) -> None:
        """What comes without a token in a header may be sent by any page that a browser shows."""
        if asking.scope.get("method", "GET") in _SAFE and asking.scope["type"] == "http":
            return
        origin = asking.headers.get("origin")
        site = asking.headers.get("sec-fetch-site", "same-origin")
        here = asking.headers.get("host", "")
        if site not in ("same-origin", "none") or (
            origin is not None and urlsplit(origin).netloc != here
        ):
            raise Refused("foreign_page", "a page of another site asks: only our own pages may")


def host_name(header: str) -> str:
    """Without the port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].lower()


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def hosts_of(bound: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """The names a server answers to: those of loopback where it is bound to that, and the given."""
    own = (*_LOOPBACK, bound) if is_loopback(bound) else ()
    return tuple(dict.fromkeys((*own, *allowed)))
