"""Names of sessions for conversations that another program has ids for."""

from __future__ import annotations

import re

from ortet._util.codec import Hasher
from ortet.errors import Invalid

_SAFE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,59}")
_HASHED_ID = re.compile(r".*\+[0-9a-f]{32}")
_NUMERIC_SEGMENT = re.compile(r"n*[0-9]+")
_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9._@-]+")


def session_name(*ids: str) -> str:
    """The name of the session of a foreign conversation: legal, readable, and another for other ids
    of the same number. An id that cannot stand in a name, or is long, ends in a hash of it: who has
    to list foreign ids records them. No such name is that of a fork, which is NAME/1."""
    if not ids:
        raise Invalid("bad_name", "a conversation without an id: give one")
    parts = [_part(id_) for id_ in ids]
    return "/".join(
        parts[:1] + ["n" + p if _NUMERIC_SEGMENT.fullmatch(p) else p for p in parts[1:]]
    )


def _part(id_: str) -> str:
    if not isinstance(id_, str):
        raise Invalid("bad_name", f"{id_!r} is no id of a conversation: give text")
    if _SAFE_ID.fullmatch(id_) and not _HASHED_ID.fullmatch(id_):
        return id_
    shown = _UNSAFE_CHARACTERS.sub("-", id_[:200]).strip("-._@")[:30] or "id"
    return f"{shown}+{Hasher().oid(id_.encode('utf-8', 'surrogatepass')).hex()[:32]}"
