"""Pages of lists, with cursors that stay valid while others append."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Annotated, Generic, TypeVar

import msgspec

from ortet.errors import Invalid

_Item = TypeVar("_Item")
_Other = TypeVar("_Other")

Limit = Annotated[int, msgspec.Meta(ge=1, le=1000, description="How many at most.")]
Cursor = Annotated[
    str, msgspec.Meta(max_length=4000, description="`next` of the page before this one.")
]


class Page(msgspec.Struct, Generic[_Item], frozen=True):
    """A part of a list. `next` is the cursor of the page that follows; null: there is none."""

    items: list[_Item]
    next: str | None = None

    def map_items(self, convert: Callable[[_Item], _Other]) -> Page[_Other]:
        return Page([convert(item) for item in self.items], self.next)


class Paged(msgspec.Struct, frozen=True):
    """Which part of a list."""

    limit: Limit = 100
    after: Cursor | None = None


def encode_cursor(*parts: object) -> str:
    """Return an opaque cursor that holds `parts`. Clients must not rely on its content."""
    text = "\n".join(map(str, parts))
    return base64.urlsafe_b64encode(text.encode("utf-8", "surrogatepass")).rstrip(b"=").decode()


def decode_cursor(text: str, count: int) -> list[str]:
    """Return the `count` parts that `encode_cursor` was given.

    Raises:
        Invalid: `text` is not a cursor with that many parts.
    """
    try:
        raw = base64.b64decode(
            text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True
        )
        parts = raw.decode("utf-8", "surrogatepass").split("\n", count - 1)
    except (UnicodeError, binascii.Error, ValueError) as error:
        raise _bad_cursor() from error
    if len(parts) != count:
        raise _bad_cursor()
    return parts


def cursor_number(part: str) -> int:
    """Return a number of a decoded cursor, or raise Invalid."""
    if not (part.isascii() and part.isdigit() and len(part) < 19):
        raise _bad_cursor()
    return int(part)


def paginate(items: Sequence[_Item], ask: Paged, key: Callable[[_Item], object]) -> Page[_Item]:
    """Return the page of `items` that `ask` selects.

    The page starts after the item whose `key` the cursor names. If that item is gone, the page
    starts at its old index.
    """
    start = 0
    if ask.after is not None:
        place, name = decode_cursor(ask.after, 2)
        start = cursor_number(place)
        behind = (n for n, item in enumerate(items, 1) if str(key(item)) == name)
        start = next(behind, start)
    found = list(items[start : start + ask.limit])
    more = start + len(found) < len(items)
    return Page(
        found, encode_cursor(start + len(found), key(found[-1])) if found and more else None
    )


def _bad_cursor() -> Invalid:
    return Invalid("bad_cursor", "this is no cursor of this list: begin without `after`")
