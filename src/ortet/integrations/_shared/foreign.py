"""Maps conversation ids of another program to session names.

This is a module of its own because all adapters must build session names by the same rule.
"""

from __future__ import annotations

import re

from ortet._util.codec import Hasher
from ortet.errors import Invalid

_SAFE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,59}")
_HASHED_ID = re.compile(r".*\+[0-9a-f]{32}")
_NUMERIC_SEGMENT = re.compile(r"n*[0-9]+")
_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9._@-]+")


def session_name(*ids: str) -> str:
    """Return the session name of a foreign conversation.

    The name is valid and readable. Different ids, if equal in number, give different names. An id
    that is long or not valid in a name is shortened and ends in a hash. Such an id cannot be read
    back from the name: an adapter that lists foreign ids has to record them. The name never equals
    a default fork name, which is NAME/1.
    """
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
