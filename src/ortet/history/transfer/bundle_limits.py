"""Limits on the resources that the import of a bundle may use.

It is a module of its own because `bundle.py` and `bundle_file.py` both need it.
"""

from __future__ import annotations

import msgspec

from ortet.errors import Refused

_RATIO_CHECK_MIN_BYTES = 1 << 30


class BundleLimits(msgspec.Struct, frozen=True):
    """Limits of an import. Above one of them it raises Refused("bundle_too_large").

    The check comes before the import uses the space. In any case, no object is larger than a frame,
    and no frame is larger than frame.MAX_RAW.
    """

    objects: int = 20_000_000
    raw_bytes: int = 1 << 42  # of all objects, decompressed
    ratio: int = 500  # decompressed to stored size, above 1 GiB: real data compresses less
    files: int = 1_000_000_000  # of one image: nested shared trees can name a huge number of files
    room: int | None = None  # bytes free in the store; None: not known here

    def check(self, *, objects: int, raw: int, stored: int) -> None:
        """Raise Refused if the bundle exceeds a limit."""
        if objects > self.objects:
            raise _too_large(f"it has more than {self.objects} objects")
        if raw > self.raw_bytes:
            raise _too_large(f"it would expand to more than {self.raw_bytes} bytes")
        if raw > _RATIO_CHECK_MIN_BYTES and raw > self.ratio * stored:
            raise _too_large(f"its {stored} bytes would expand more than {self.ratio}-fold")
        if self.room is not None and stored > self.room:
            raise _too_large(f"it needs {stored} bytes and there is room for {self.room}")

    def check_files(self, files: int) -> None:
        """Raise Refused if one image has too many files."""
        if files > self.files:
            raise _too_large(f"one of its directories would hold more than {self.files} files")


def _too_large(why: str) -> Refused:
    return Refused(
        "bundle_too_large",
        f"the bundle was not imported, {why}: if you trust it, make room or raise the limit",
    )
