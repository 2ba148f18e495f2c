"""Typed bytes that detach from an attached shell."""

from __future__ import annotations

import pytest

from ortet.cli.terminal.attached import DetachDetector


@pytest.mark.parametrize(
    ("typed", "given", "leaves"),
    [
        (b"ls\r", b"ls\r", False),
        (b"ab\x1dcd", b"ab", True),
        (b"~.", b"", True),  # the beginning is the begin of a line
        (b"x~.", b"x~.", False),
        (b"x\r~.", b"x\r", True),
        (b"~~.", b"~.", False),
        (b"~x", b"~x", False),
    ],
)
def test_escape_sequences_leave_an_attached_shell(typed: bytes, given: bytes, leaves: bool) -> None:
    assert DetachDetector().feed(typed) == (given, leaves)
    escape, out, left = DetachDetector(), b"", False
    for code in typed:  # a key at a time
        if not left:
            data, left = escape.feed(bytes((code,)))
            out += data
    assert (out, left) == (given, leaves)
