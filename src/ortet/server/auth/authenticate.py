"""Authenticates requests: bearer tokens, the cookie of the page, host names, request origins."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

import msgspec
from starlette.requests import HTTPConnection
from starlette.types import Scope

from ortet.errors import Refused
from ortet.server.auth.tokens import OWNER, Caller, Tokens
from ortet.server.errors import Unauthorized

COOKIE = "ortet"
_SAFE = ("GET", "HEAD", "OPTIONS")
_SAME_SITE_VALUES = ("same-origin", "none")
PROBES = ("/healthz", "/readyz")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class AccessPolicy(msgspec.Struct, frozen=True):
    """Access rules of a server that do not depend on the token.

    `hosts` are the names that the Host header may have; empty means any. The check prevents DNS
    rebinding: another site must not reach the server through a host name of its own. With `open_`,
    requests need no token; used on loopback only.
    """

    hosts: tuple[str, ...] = ()
    open_: bool = False
    may_run: bool = False  # every token with write access may run commands on this host


class Authenticator:
    """Finds the caller of a request, and checks its host name and origin."""

    def __init__(self, tokens: Tokens, policy: AccessPolicy) -> None:
        self._tokens = tokens
        self.policy = policy

    def authenticate(self, connection: HTTPConnection) -> Caller:
        """Return the caller of a request. Blocks, because it reads token rows.

        Raises:
            Unauthorized: The request has no token, two tokens, or an invalid one.
            Refused: A page of another site sent the request.
        """
        headers = connection.headers.getlist("authorization")
        if len(headers) > 1:  # a proxy may have checked the other one
            raise Unauthorized("bad_token", "the request has two tokens: send one")
        scheme, _, token = "".join(headers).partition(" ")
        if scheme.lower() == "bearer" and token:
            return self.caller_of_token(token.strip())
        self.check_origin(connection)
        cookie = connection.cookies.get(COOKIE)
        if self.policy.open_:
            # the cookie may belong to another server: browsers share cookies among ports of a host
            return (self._find_caller(cookie) if cookie else None) or OWNER
        if cookie:
            return self.caller_of_token(cookie)
        raise Unauthorized(
            "no_token",
            "the request has no token: send Authorization: Bearer TOKEN, which hubs and the "
            "command line take from $ORTET_TOKEN; `ortet access create` makes one",
        )

    def caller_of_token(self, token: str) -> Caller:
        """Return the caller of a token, or raise Unauthorized."""
        caller = self._find_caller(token)
        if caller is None:
            raise Unauthorized(
                "bad_token", "this token is unknown, revoked or expired: get another"
            )
        return caller

    def _find_caller(self, token: str) -> Caller | None:
        caller = self._tokens.find_caller(token)
        if caller is not None and self.policy.may_run and caller.may("write"):
            return msgspec.structs.replace(caller, runs=True)
        return caller

    def check_host(self, scope: Scope) -> None:
        """Raise Refused if the Host header is not an allowed name.

        Health probes are exempt, because load balancers send them to an IP address.
        """
        headers = [value for name, value in scope["headers"] if name == b"host"]
        name = ", ".join(host_name(value.decode("latin-1")) for value in headers)
        if len(headers) < 2 and (not self.policy.hosts or scope["path"] in PROBES):
            return
        if name not in self.policy.hosts:
            raise Refused(
                "bad_host",
                f"this server is not {name[:100]!r}: use its own name, or start it with "
                "--allow-host",
            )

    def check_origin(self, connection: HTTPConnection) -> None:
        """Raise Refused if a page of another site sent the request.

        Needed for requests without an Authorization header: a browser sends the cookie for any
        page.
        """
        site = connection.headers.get("sec-fetch-site", "same-origin")
        if connection.scope.get("method", "") in _SAFE:
            # links from other sites may lead here, but their pages may not fetch
            foreign = (
                site not in _SAME_SITE_VALUES
                and connection.headers.get("sec-fetch-mode") != "navigate"
            )
        else:
            origin, here = connection.headers.get("origin"), connection.headers.get("host", "")
            if origin == "null" and connection.headers.get("sec-fetch-site") == "same-origin":
                origin = None  # our own form: no-referrer hides the origin
            other = origin is not None and _origin_host(origin) != here
            foreign = other or site not in _SAME_SITE_VALUES
        if foreign:
            raise Refused(
                "foreign_page",
                "the request comes from a page of another site: send it from a page of this server",
            )


def _origin_host(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def host_name(header: str) -> str:
    """Return the host name of a Host header, without the port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0].lower()


def is_loopback(host: str) -> bool:
    """Return True if `host` is localhost or a loopback address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def allowed_hosts(bound: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """Return the host names that a server answers to; includes loopback names if bound there."""
    own = (*_LOOPBACK, bound) if is_loopback(bound) else ()
    return tuple(dict.fromkeys((*own, *allowed)))
