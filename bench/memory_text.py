"""Words of a text, and texts by their numbers: what several systems need."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence


def tokens(text: str) -> list[str]:
    """Its words, in lower case."""
    return re.findall(r"[^\W_]+", text.lower())


class Numbers:
    """Texts by the order they came in."""

    def __init__(self) -> None:
        self._of: dict[str, list[int]] = defaultdict(list)
        self._count = 0

    def add(self, texts: Sequence[str]) -> None:
        for text in texts:
            self._of[text].append(self._count)
            self._count += 1

    def matched(self, found: Sequence[str]) -> list[int]:
        """The numbers of what was found; of equal texts, one after the other."""
        taken: dict[str, int] = {}
        numbers = []
        for text in found:
            nth = taken.get(text, 0)
            taken[text] = nth + 1
            numbers += self._of.get(text, [])[nth : nth + 1]
        return numbers
