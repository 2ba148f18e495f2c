"""What is said in the session rows: English-like text of one length, from a fixed seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate

LENGTH = 400
# The most frequent first: drawn by rank, so that text compresses about as real text does.
WORDS = """
the of and to a in that it is was for on with as he be at by this had not are but from or
have an they which one you were all her she there would their we him been has when who will
no more if out so up said what its about than into them can only other time new some could
these two may first then do any like my now over such our man me even most made after also
well did many before must years back through much where your down should because long each
just state those people too how little good world make very year still see own work men day
get here old life both between being under three never know same last another while us off
might great go come since against right came take used himself few house use place during
without again home around small however found part school thought went say general once
high upon every left does number until always away something fact water less public put
thing almost hand enough far took head yet government system better set told nothing night
end why called didn't eyes find going look asked later knew point next program city business
give group toward young days let room word side social given present several order second
rather face per done form important often things looked early white john case large need
test parser buffer token error function module commit branch request server client cache
file path line value return import class object thread process memory index query table
column session journal event action result failed passed retry timeout payload header hash
""".split()  # noqa: SIM905
_WEIGHTS = list(accumulate(1 / (rank + 2) for rank in range(len(WORDS))))


def messages(seed: int = 11) -> Iterator[str]:
    """For ever; each has LENGTH bytes. One word in twelve is a name or number no list has."""
    chance = random.Random(seed)
    while True:
        parts: list[str] = []
        size = 0
        while size < LENGTH:
            word = _strange(chance) if chance.random() < 1 / 12 else _common(chance)
            parts.append(word)
            size += len(word) + 1
        yield " ".join(parts)[:LENGTH]


def _common(chance: random.Random) -> str:
    return chance.choices(WORDS, cum_weights=_WEIGHTS)[0] + ("," if chance.random() < 0.07 else "")


def _strange(chance: random.Random) -> str:
    if chance.random() < 0.5:
        return str(chance.randrange(10**5))
    return "".join(chance.choices("abcdefghijklmnopqrstuvwxyz_", k=chance.randrange(4, 14)))
