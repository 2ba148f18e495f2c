"""Who is asking, and whether it may: tokens, the page's cookie, and requests of foreign pages."""

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
    """`hosts` are the names under which the server may be asked for; with none, any: a page of
    another site that has the server's address under its own name must not get through. `open_`:
    no token is asked for, on loopback."""

    hosts: tuple[str, ...] = ()
    open_: bool = False
    may_run: bool = False  # any token that may write runs commands on this host


class Authenticator:
    def __init__(self, tokens: Tokens, policy: AccessPolicy) -> None:
        self._tokens = tokens
        self.policy = policy

    def authenticate(self, connection: HTTPConnection) -> Caller:
        """Whoever asks; Unknown, or Refused for a page of another site. Blocking: it reads rows."""
        shown = connection.headers.getlist("authorization")
        if len(shown) > 1:  # whatever stands before us may have looked at another
            raise Unauthorized("bad_token", "two tokens are shown: show one")
        scheme, _, token = "".join(shown).partition(" ")
        if scheme.lower() == "bearer" and token:
            return self.caller_of_token(token.strip())
        self.check_origin(connection)
        cookie = connection.cookies.get(COOKIE)
        if self.policy.open_:
            # a cookie may be of another server: browsers do not tell ports of a host apart
            return (self._find_caller(cookie) if cookie else None) or OWNER
        if cookie:
            return self.caller_of_token(cookie)
        raise Unauthorized(
            "no_token",
            "say who you are: Authorization: Bearer TOKEN, which hubs and the command line take "
            "from $ORTET_TOKEN; `ortet access create` makes one",
        )

    def caller_of_token(self, token: str) -> Caller:
        """Whose token it is; Unknown."""
        found = self._find_caller(token)
        if found is None:
            raise Unauthorized(
                "bad_token", "this token is unknown, revoked or out of time: get another"
            )
        return found

    def _find_caller(self, token: str) -> Caller | None:
        found = self._tokens.find_caller(token)
        if found is not None and self.policy.may_run and found.may("write"):
            return msgspec.structs.replace(found, runs=True)
        return found

    def check_host(self, scope: Scope) -> None:
        """Of every request but those that ask whether it is alive, which a balancer sends to an
        address; Refused."""
        given = [value for name, value in scope["headers"] if name == b"host"]
        name = ", ".join(host_name(value.decode("latin-1")) for value in given)
        if len(given) < 2 and (not self.policy.hosts or scope["path"] in PROBES):
            return
        if name not in self.policy.hosts:
            raise Refused(
                "bad_host",
                f"this server is not {name[:100]!r}: use its own name, or start it with "
                "--allow-host",
            )

    def check_origin(self, connection: HTTPConnection) -> None:
        """What comes without a token in a header may be sent by any page that a browser shows."""
        site = connection.headers.get("sec-fetch-site", "same-origin")
        if connection.scope.get("method", "") in _SAFE:
            # a link may lead here; but what is fetched is not for pages of others
            foreign = (
                site not in _SAME_SITE_VALUES
                and connection.headers.get("sec-fetch-mode") != "navigate"
            )
        else:
            origin, here = connection.headers.get("origin"), connection.headers.get("host", "")
            if origin == "null" and connection.headers.get("sec-fetch-site") == "same-origin":
                origin = None  # a form of ours: pages that tell no referrer tell no origin either
            other = origin is not None and _origin_host(origin) != here
            foreign = other or site not in _SAME_SITE_VALUES
        if foreign:
            raise Refused("foreign_page", "a page of another site asks: only our own pages may")


def _origin_host(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


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


def allowed_hosts(bound: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """The names a server answers to: those of loopback where it is bound to that, and the given."""
    own = (*_LOOPBACK, bound) if is_loopback(bound) else ()
    return tuple(dict.fromkeys((*own, *allowed)))
