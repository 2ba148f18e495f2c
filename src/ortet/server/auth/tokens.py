"""Access tokens: what their caller may do, for which tenant and agents. Only a hash is stored."""

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
"""Row kind of tokens, keyed by id.

The rows are in the server's own store, not in those of tenants.
"""

PREFIX = "ortet"
_SECRET_BYTES = 32


class TokenRow(msgspec.Struct, frozen=True):
    """A stored token.

    Encoded as a map, so that later releases may add keys. Times are in ns since 1970.
    """

    id: str
    name: str
    hash: bytes
    allows: TokenScope
    created: int
    tenant: str = ""
    agents: list[str] = []  # empty: all agents of the tenant
    expires: int = 0  # 0: never
    raw: bool = True  # may use the raw store, as remote hubs do


class Caller(msgspec.Struct, frozen=True):
    """The caller of a request. Without a token, on loopback, it is the owner."""

    token: str = ""
    name: str = "owner"
    tenant: str = ""
    allows: TokenScope = "admin"
    agents: tuple[str, ...] = ()
    runs: bool = True  # may run commands on the server's host
    raw: bool = True  # may use the raw store

    def may(self, needs: TokenScope) -> bool:
        """Return True if the token has at least the scope `needs`."""
        return TOKEN_SCOPES.index(needs) <= TOKEN_SCOPES.index(self.allows)

    def sees(self, agent: str) -> bool:
        """Return True if the caller may see sessions of this agent."""
        return not self.agents or agent in self.agents

    def need(self, needs: TokenScope) -> None:
        """Raise Refused unless the token has at least the scope `needs`."""
        if not self.may(needs):
            raise Refused(
                "token_scope",
                f"this token allows {self.allows} only, and this needs {needs}: use another",
                allows=self.allows,
                needs=needs,
            )

    def need_raw(self) -> None:
        """Raise Refused unless the caller may use the raw store.

        Raw access bypasses the rules of operations and the limits to agents.
        """
        if self.agents:
            raise Refused(
                "token_agents",
                "the operation covers all agents, and the token is limited to some: use "
                "another token",
            )
        if not self.raw:
            raise Refused(
                "token_raw",
                "this token is for HTTP alone, not for a remote hub: ask the server's operations, "
                "or use a token that was made without --no-raw",
            )

    def need_host(self) -> None:
        """Raise Refused unless the caller may read, write or run on the server's host.

        An admin of a tenant may not: its commands could read the stores of other tenants.
        """
        if not self.runs:
            raise Refused(
                "token_host",
                "this token may run nothing on the server's host: use an admin's that is for no "
                "tenant and no agent, or start the server with --allow-run",
            )


OWNER = Caller()


class Tokens:
    """The tokens in a server's store.

    Each lookup reads the row, so a revocation takes effect at once.
    """

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
        """Create a token.

        Returns:
            The token, which cannot be read again later, and its stored row.
        """
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
        """Yield all tokens, ordered by id."""
        after = ""
        while page := self._catalog.rows(TOKEN_KIND, after):
            yield from (decode(TokenRow, row.value) for row in page)
            after = page[-1].key

    def revoke(self, name_or_id: str) -> TokenRow:
        """Revoke a token by its id, or by its name if that is unique.

        Raises:
            Conflict: Several tokens have this name.
            NotFound: There is no such token.
        """
        named = [row.id for row in self.all() if row.name == name_or_id]
        if name_or_id and self._catalog.row(TOKEN_KIND, name_or_id) is not None:
            named = [name_or_id]
        if len(named) > 1:
            raise Conflict(
                "ambiguous", f"{name_or_id!r} may be {', '.join(named)}: say which of them"
            )
        id_ = named[0] if named else ""
        stored = self._catalog.row(TOKEN_KIND, id_) if named else None
        if stored is None:
            raise NotFound(
                "no_token", f"there is no token {name_or_id!r}: `ortet access ls` lists them"
            )
        change = RowChange(TOKEN_KIND, id_, None, expect=stored.version)
        self._catalog.move([], verb="token", rows=[change])
        return decode(TokenRow, stored.value)

    def find_caller(self, token: str) -> Caller | None:
        """Return the caller of a token, or None if it is unknown, wrong, revoked or expired."""
        prefix, _, rest = token.partition("_")
        id_, _, secret = rest.partition("_")
        known = prefix == PREFIX and id_.isalnum() and id_.isascii()
        stored = self._catalog.row(TOKEN_KIND, id_) if known else None
        row = decode(TokenRow, stored.value) if stored else None
        digest = _hash(secret)
        # Compare even without a row, so that the response time does not reveal if the id exists.
        same = hmac.compare_digest(digest, row.hash if row else bytes(len(digest)))
        if row is None or not same or (row.expires and row.expires <= self._clock.now_ns()):
            return None
        owns = row.allows == "admin" and not row.tenant and not row.agents
        return Caller(row.id, row.name, row.tenant, row.allows, tuple(row.agents), owns, row.raw)


def _hash(secret: str) -> bytes:
    """Return the hash of a secret. A fast hash is enough, because secrets are long and random."""
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()


def public_fields(row: TokenRow) -> dict[str, Any]:
    """Return the fields of a token that may be shown."""
    return {name: value for name, value in msgspec.structs.asdict(row).items() if name != "hash"}
