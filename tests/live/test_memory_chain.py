"""Memory by the hundred megabytes, through generations of copies."""

from __future__ import annotations

import pytest
from tests.live.lives import Life, ask

_MIB = 256
_HOLDER = f"""
import hashlib, os, sys
held = bytearray().join(os.urandom(1 << 20) for _ in range({_MIB}))
for line in sys.stdin:
    word, _, value = line.strip().partition(" ")
    if word == "sum":
        print(hashlib.blake2b(held).hexdigest(), flush=True)
    elif word == "set":  # a page of its own for each generation
        at = int(value) * 40_000_000
        held[at : at + 4096] = hashlib.blake2b(value.encode()).digest() * 64
        print(hashlib.blake2b(held).hexdigest(), flush=True)
"""


@pytest.mark.slow
def test_five_generations_of_forks_keep_their_own_memory(life: Life) -> None:
    session = life.begin()
    session.spawn("holder", ["python3", "-c", _HOLDER], stdin=True)
    expected = ask(session.programs.job("holder"), "sum")
    family = [(session, expected)]
    for generation in range(1, 6):
        (child,) = family[-1][0].fork(1)
        assert ask(child.programs.job("holder"), "sum") == family[-1][1]
        changed = ask(child.programs.job("holder"), f"set {generation}")
        assert changed != family[-1][1]
        family.append((child, changed))
    for member, known in family:  # none was changed by its descendants
        assert ask(member.programs.job("holder"), "sum") == known
    last = family[-1][0].commit("the last")
    life.kill()
    restored = life.hub.session(session.name)
    restored.restore(last.oid)
    assert ask(restored.programs.job("holder"), "sum") == family[-1][1]
