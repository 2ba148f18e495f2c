"""Words of a text, and texts by their numbers: what several systems need."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence


def tokens(text: str) -> list[str]:
    """Each word once, in lower case."""
    return list(dict.fromkeys(re.findall(r"[^\W_]+", text.lower())))


def matched(found: Sequence[str], texts: Sequence[str]) -> list[int]:
    """The numbers of texts that were found; of equal ones, the first that is not taken yet."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for number in reversed(range(len(texts))):
        numbers[texts[number]].append(number)
    return [numbers[text].pop() for text in found if numbers[text]]
