"""How much a bundle may ask of the host that imports it."""

from __future__ import annotations

import msgspec

from ortet.errors import Refused

_RATIO_CHECK_MIN_BYTES = 1 << 30


class BundleLimits(msgspec.Struct, frozen=True):
    """Above any of these an import is Refused("bundle_too_large"), before it has taken the room.

    No object is larger than a frame, and no frame larger than frame.MAX_RAW, whatever these say.
    """

    objects: int = 20_000_000
    raw_bytes: int = 1 << 42  # of all objects, expanded
    ratio: int = 500  # expanded to stored, above 1 GiB: data that is all new does not shrink so far
    files: int = (
        1_000_000_000  # of one image: a small tree of shared trees can name more than atoms
    )
    room: int | None = None  # bytes the store may still take; None: the store says when it is full

    def check(self, *, objects: int, raw: int, stored: int) -> None:
        if objects > self.objects:
            raise _too_large(f"it has more than {self.objects} objects")
        if raw > self.raw_bytes:
            raise _too_large(f"it would expand to more than {self.raw_bytes} bytes")
        if raw > _RATIO_CHECK_MIN_BYTES and raw > self.ratio * stored:
            raise _too_large(f"its {stored} bytes would expand more than {self.ratio}-fold")
        if self.room is not None and stored > self.room:
            raise _too_large(f"it needs {stored} bytes and there is room for {self.room}")

    def check_files(self, files: int) -> None:
        if files > self.files:
            raise _too_large(f"one of its directories would hold more than {self.files} files")


def _too_large(why: str) -> Refused:
    return Refused(
        "bundle_too_large",
        f"the bundle was not imported, {why}: if you trust it, make room or raise the limit",
    )
