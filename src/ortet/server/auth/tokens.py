"""Tokens: who may ask, for what, and in whose name. Only a hash of each is stored."""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from ortet._util.codec import decode, encode
from ortet.backends.base import Catalog, RowChange
from ortet.errors import Conflict, Invalid, NotFound, Refused
from ortet.ids import Clock, Random
from ortet.server.operations.registry import TOKEN_SCOPES, TokenScope

TOKEN_KIND = "token"
"""Rows of this kind, by id, are tokens; they lie in the store that the server was started with."""

PREFIX = "ortet"
_SECRET_BYTES = 32


class TokenRow(msgspec.Struct, frozen=True):
    """A map, so that later releases may add keys. Times are in ns since 1970."""

    id: str
    name: str
    hash: bytes
    allows: TokenScope
    created: int
    tenant: str = ""
    agents: list[str] = []  # none: all of its tenant
    expires: int = 0  # 0: never
    raw: bool = True  # the store itself too, for remote hubs


class Caller(msgspec.Struct, frozen=True):
    """Who asks. Without a token, on loopback, it is the owner."""

    token: str = ""
    name: str = "owner"
    tenant: str = ""
    allows: TokenScope = "admin"
    agents: tuple[str, ...] = ()
    runs: bool = True  # commands on the server's host
    raw: bool = True  # the store itself

    def may(self, needs: TokenScope) -> bool:
        return TOKEN_SCOPES.index(needs) <= TOKEN_SCOPES.index(self.allows)

    def sees(self, agent: str) -> bool:
        return not self.agents or agent in self.agents

    def need(self, needs: TokenScope) -> None:
        if not self.may(needs):
            raise Refused(
                "token_scope",
                f"this token allows {self.allows} only, and this needs {needs}: use another",
                allows=self.allows,
                needs=needs,
            )

    def need_raw(self) -> None:
        """For the store itself, which knows no agents, and none of the rules of operations."""
        if self.agents:
            raise Refused(
                "token_agents", "this is about all agents, and the token is for some: use another"
            )
        if not self.raw:
            raise Refused(
                "token_raw",
                "this token is for HTTP alone, not for a remote hub: ask the server's operations, "
                "or use a token that was made without --no-raw",
            )

    def need_host(self) -> None:
        """For what reads, writes or runs on the server's host, outside of the store. A tenant's
        own admin is nobody there: what it runs could read the stores of others."""
        if not self.runs:
            raise Refused(
                "token_host",
                "this token may run nothing on the server's host: use an admin's that is for no "
                "tenant and no agent, or start the server with --allow-run",
            )


OWNER = Caller()


class Tokens:
    """Those of one server's store; every look is at the rows, so that a revoked one is at once."""

    def __init__(self, catalog: Catalog, clock: Clock, random: Random) -> None:
        self._catalog = catalog
        self._clock = clock
        self._random = random

    def create(
        self,
        name: str,
        allows: str,
        *,
        tenant: str = "",
        agents: Sequence[str] = (),
        seconds: float | None = None,
        raw: bool = True,
    ) -> tuple[str, TokenRow]:
        """The token itself, which nobody can read again, and what is stored of it."""
        if allows not in TOKEN_SCOPES:
            raise Invalid("bad_scope", f"{allows!r}: give {', '.join(TOKEN_SCOPES)}")
        if seconds is not None and not 0 < seconds < 10**10:
            raise Invalid("bad_time", f"{seconds} seconds: give a time in which it is valid")
        now = self._clock.now_ns()
        id_, secret = self._random(6).hex(), self._random(_SECRET_BYTES).hex()
        row = TokenRow(
            id_,
            name,
            _hash(secret),
            allows,
            now,
            tenant,
            sorted(set(agents)),
            0 if seconds is None else now + int(seconds * 1e9),
            raw,
        )
        change = RowChange(TOKEN_KIND, id_, encode(row), expect=0)
        self._catalog.move([], verb="token", rows=[change])
        return f"{PREFIX}_{id_}_{secret}", row

    def all(self) -> Iterator[TokenRow]:
        after = ""
        while page := self._catalog.rows(TOKEN_KIND, after):
            yield from (decode(TokenRow, row.value) for row in page)
            after = page[-1].key

    def revoke(self, name_or_id: str) -> TokenRow:
        """By its id, or by its name where no other has it."""
        named = [row.id for row in self.all() if row.name == name_or_id]
        if name_or_id and self._catalog.row(TOKEN_KIND, name_or_id) is not None:
            named = [name_or_id]
        if len(named) > 1:
            raise Conflict(
                "ambiguous", f"{name_or_id!r} may be {', '.join(named)}: say which of them"
            )
        id_ = named[0] if named else ""
        found = self._catalog.row(TOKEN_KIND, id_) if named else None
        if found is None:
            raise NotFound(
                "no_token", f"there is no token {name_or_id!r}: `ortet access ls` lists them"
            )
        change = RowChange(TOKEN_KIND, id_, None, expect=found.version)
        self._catalog.move([], verb="token", rows=[change])
        return decode(TokenRow, found.value)

    def find_caller(self, token: str) -> Caller | None:
        """Whose it is; None for one that is unknown, wrong, revoked or out of time."""
        prefix, _, rest = token.partition("_")
        id_, _, secret = rest.partition("_")
        known = prefix == PREFIX and id_.isalnum() and id_.isascii()
        found = self._catalog.row(TOKEN_KIND, id_) if known else None
        row = decode(TokenRow, found.value) if found else None
        digest = _hash(secret)
        # compared in any case, so that the time taken does not tell whether the id is known
        same = hmac.compare_digest(digest, row.hash if row else bytes(len(digest)))
        if row is None or not same or (row.expires and row.expires <= self._clock.now_ns()):
            return None
        owns = row.allows == "admin" and not row.tenant and not row.agents
        return Caller(row.id, row.name, row.tenant, row.allows, tuple(row.agents), owns, row.raw)


def _hash(secret: str) -> bytes:
    """They are random and long: a slow hash would add nothing."""
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()


def public_fields(row: TokenRow) -> dict[str, Any]:
    """What may be shown of a token."""
    return {name: value for name, value in msgspec.structs.asdict(row).items() if name != "hash"}
