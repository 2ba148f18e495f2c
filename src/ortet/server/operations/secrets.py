"""Secrets of the vault: store, list by name, delete. No answer contains a value."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ortet.hub.hub import Hub
from ortet.server.operations.registry import operation
from ortet.server.pagination import Page, Paged, paginate
from ortet.server.schemas import OperationRequest

SecretName = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class SecretInfo(msgspec.Struct, frozen=True):
    """`expires`: a time in ns since 1970, or 0 for never."""

    name: str
    expires: int


@operation("GET", "/secrets", needs="admin")
def list_secrets(hub: Hub, ask: Paged) -> Page[SecretInfo]:
    """List the names of the secrets, sorted."""
    names = paginate(hub.vault.names(), ask, lambda name: name)
    return names.map_items(lambda name: SecretInfo(name, hub.vault.expires(name)))


class PutSecret(OperationRequest, frozen=True):
    """`expires`: a date, or a duration from now such as 90d."""

    name: SecretName
    value: Annotated[str, msgspec.Meta(min_length=1, max_length=1 << 20)]
    expires: Annotated[str, msgspec.Meta(max_length=64)] | None = None


@operation("PUT", "/secrets/{name:path}", needs="admin")
def put_secret(hub: Hub, ask: PutSecret) -> SecretInfo:
    """Store a secret in the vault, encrypted and outside of every commit. A secret of the same name
    is replaced.
    """
    hub.vault.put(ask.name, ask.value, expires=ask.expires)
    return SecretInfo(ask.name, hub.vault.expires(ask.name))


class OneSecret(OperationRequest, frozen=True):
    name: SecretName


class SecretRemoved(msgspec.Struct, frozen=True):
    removed: str


@operation("DELETE", "/secrets/{name:path}", needs="admin")
def forget_secret(hub: Hub, ask: OneSecret) -> SecretRemoved:
    """Delete a secret from the vault, including its traces in the database."""
    hub.vault.forget(ask.name)
    return SecretRemoved(ask.name)
