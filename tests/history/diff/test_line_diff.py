"""Common runs are common, changes rebuild the other text, and patch(1) accepts the output."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ortet.history.diff.line_diff import line_changes, matching_blocks, split_lines, unified_diff

texts = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"d\r\n", b"\n"]), max_size=30)
REUSED = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_split_keeps_every_byte(data: bytes) -> None:
    lines = split_lines(data)
    assert b"".join(lines) == data
    assert all(line.endswith(b"\n") for line in lines[:-1])
    assert all(line.count(b"\n") <= 1 and line for line in lines)


@settings(deadline=None)
@given(a=texts, b=texts)
def test_blocks_are_common_and_in_order(a: list[bytes], b: list[bytes]) -> None:
    at = to = 0
    for block in matching_blocks(a, b):
        assert block.size > 0
        assert a[block.a : block.a + block.size] == b[block.b : block.b + block.size]
        assert block.a >= at
        assert block.b >= to
        at, to = block.a + block.size, block.b + block.size


@settings(deadline=None)
@given(a=texts, b=texts)
def test_applying_the_changes_gives_the_other_text(a: list[bytes], b: list[bytes]) -> None:
    out: list[bytes] = []
    at = 0
    for change in line_changes(a, b):
        out += a[at : change.a0] + b[change.b0 : change.b1]
        at = change.a1
    assert out + a[at:] == b


@settings(deadline=None)
@given(a=texts, insert=texts, data=st.data())
def test_an_insertion_is_one_change(
    a: list[bytes], insert: list[bytes], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(a)))
    found = line_changes(a, a[:at] + insert + a[at:])
    assert len(found) <= 1
    assert sum(change.b1 - change.b0 for change in found) == len(insert)


def test_moved_function_is_seen_as_a_block() -> None:
    a = split_lines(b"def one():\n    pass\n\ndef two():\n    return 2\n\ndef three():\n    pass\n")
    b = split_lines(b"def two():\n    return 2\n\ndef three():\n    pass\n\ndef one():\n    pass\n")
    assert len(line_changes(a, b)) == 2


def test_texts_without_anchors_end_in_reasonable_time() -> None:
    a = [b"x\n", b"y\n"] * 10_000
    b = [b"y\n", b"y\n", b"x\n"] * 7_000
    found = line_changes(a, b)
    assert found[0].b0 <= found[-1].b1


@REUSED
@given(a=texts, b=texts, newline=st.booleans(), context=st.integers(0, 4))
def test_the_patch_command_applies_the_unified_diff(
    tmp_path: Path, a: list[bytes], b: list[bytes], newline: bool, context: int
) -> None:
    if not newline and b:
        b = [*b[:-1], b"no newline at the end"]
    hunks = unified_diff(a, b, context)
    if not hunks:
        assert a == b
        return
    (tmp_path / "file").write_bytes(b"".join(a))
    diff = "--- file\n+++ file\n" + "".join(hunks)
    command = ["git", "apply", "--unidiff-zero", "--whitespace=nowarn", "-p0", "-"]
    done = subprocess.run(
        command, cwd=tmp_path, input=diff.encode(), capture_output=True, check=False
    )
    if b"".join(b):
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "file").read_bytes() == b"".join(b)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (b"", b"x\n", ["@@ -0,0 +1 @@\n", "+x\n"]),
        (b"x\n", b"", ["@@ -1 +0,0 @@\n", "-x\n"]),
        (b"x", b"x\n", ["@@ -1 +1 @@\n", "-x\n\\ No newline at end of file\n", "+x\n"]),
        (b"\xff\n", b"\xfe\n", ["@@ -1 +1 @@\n", "-\\xff\n", "+\\xfe\n"]),
        (b"same\n", b"same\n", []),
    ],
)
def test_unified_handles_empty_files_missing_newlines_and_raw_bytes(
    a: bytes, b: bytes, expected: list[str]
) -> None:
    assert unified_diff(split_lines(a), split_lines(b)) == expected
