"""Names, their rules, the reflog, and every way to write a commit down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ortet._util.codec import encode
from ortet.backends.sqlite.catalog import SqliteCatalog
from ortet.errors import Conflict, Invalid, NotFound, OrtetError
from ortet.history.commits import History
from ortet.history.records import Commit, State
from ortet.history.refs import Refs, check_ref_name
from ortet.ids import Oid
from ortet.objects.base import Kind, ObjectStore

Find = Callable[[str], list[tuple[Oid, Kind]]]


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqliteCatalog]:
    catalog = SqliteCatalog(tmp_path / "catalog.db")
    yield catalog
    catalog.close()


@pytest.fixture
def refs(catalog: SqliteCatalog, objects: ObjectStore, find: Find) -> Refs:
    return Refs(catalog, objects, find)


@pytest.fixture
def line(objects: ObjectStore) -> list[Oid]:
    """Ten commits, oldest first."""
    state = objects.put(Kind.STATE, encode(State()))
    oids: list[Oid] = []
    for number in range(10):
        record = Commit(state, oids[-1:], str(number), number, "me")
        oids.append(objects.put(Kind.COMMIT, encode(record)))
    return oids


@pytest.fixture
def merge(objects: ObjectStore, line: list[Oid]) -> Oid:
    """A commit with parents 9 and 3."""
    state = objects.put(Kind.STATE, encode(State()))
    record = Commit(state, [line[9], line[3]], "merge", 11, "me")
    return objects.put(Kind.COMMIT, encode(record))


def kind_of(call: Callable[[], object]) -> str:
    with pytest.raises(OrtetError) as caught:
        call()
    return caught.value.kind


@pytest.mark.parametrize(
    "name", ["main", "proj/1", "fix-42", "a.b", "émile", "x" * 200, "deadbeef", "a@b"]
)
def test_valid_ref_names_are_accepted(name: str) -> None:
    assert check_ref_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "-x",
        "HEAD",
        "@",
        ".x",
        "a/.x",
        "x.lock",
        "x.lock/y",
        "a..b",
        "a b",
        "a~1",
        "a^",
        "a:b",
        "a?",
        "a*",
        "a[b",
        "a\\b",
        "a@{1}",
        "/a",
        "a/",
        "a//b",
        "a.",
        "a\nb",
        "a\x7f",
        "é" * 101,
        "\udcff",
        "f" * 64,
    ],
)
def test_invalid_ref_names_are_refused(refs: Refs, line: list[Oid], name: str) -> None:
    assert kind_of(lambda: check_ref_name(name)) == "bad_name"
    assert kind_of(lambda: refs.create(name, line[0])) == "bad_name"


def test_a_branch_and_a_tag_may_have_the_same_name(refs: Refs, line: list[Oid]) -> None:
    refs.create("b", line[1])
    refs.create("a", line[2])
    refs.create("a", line[3], kind="tag")
    assert [(head.name, head.oid) for head in refs.branches()] == [("a", line[2]), ("b", line[1])]
    assert [(head.name, head.oid) for head in refs.tags()] == [("a", line[3])]
    head = refs.get("a", kind="tag")
    assert head is not None
    assert (head.name, head.oid) == ("a", line[3])
    assert refs.get("nope") is None


def test_branches_lists_more_than_one_page(refs: Refs, line: list[Oid]) -> None:
    for number in range(1005):
        refs.create(f"b{number:04}", line[0])
    assert len(refs.branches()) == 1005


def test_create_is_exclusive_and_needs_a_commit(refs: Refs, line: list[Oid]) -> None:
    refs.create("a", line[0])
    with pytest.raises(Conflict):
        refs.create("a", line[1])
    with pytest.raises(NotFound):
        refs.create("b", Oid(b"x" * 32))


def test_move_with_a_stale_expectation_is_refused(refs: Refs, line: list[Oid]) -> None:
    refs.create("a", line[0])
    refs.move("a", line[1], expect=line[0], verb="commit")
    with pytest.raises(Conflict):
        refs.move("a", line[2], expect=line[0])
    assert refs.resolve("a") == line[1]


def test_delete_leaves_the_reflog(refs: Refs, line: list[Oid]) -> None:
    refs.create("a", line[0])
    refs.move("a", line[1], expect=line[0], verb="commit", detail="one")
    with pytest.raises(Conflict):
        refs.delete("a", expect=line[0])
    assert refs.delete("a", actor="me") == line[1]
    log = refs.reflog("a")
    assert [(op.verb, op.old, op.new) for op in log] == [
        ("delete branch", line[1], None),
        ("commit", line[0], line[1]),
        ("create branch", None, line[0]),
    ]
    assert refs.resolve("a@{1}") == line[1]
    assert kind_of(lambda: refs.delete("a")) == "no_ref"


def test_resolve_accepts_full_ids_and_prefixes(refs: Refs, line: list[Oid]) -> None:
    text = line[4].hex()
    assert refs.resolve(text) == line[4]
    assert refs.resolve(text.upper()) == line[4]
    assert refs.resolve(text[:12]) == line[4]
    assert refs.resolve(text[:12] + "~2") == line[2]
    assert kind_of(lambda: refs.resolve(text[:3])) == "no_ref"
    assert kind_of(lambda: refs.resolve("0" * 64)) == "no_ref"


def test_resolve_counts_only_commits(
    catalog: SqliteCatalog, objects: ObjectStore, line: list[Oid], find: Find
) -> None:
    """Four digits that a commit shares with a tree mean the commit; with a commit, nothing."""
    others: dict[str, list[tuple[Oid, Kind]]] = {
        "aaaa": [(line[1], Kind.COMMIT), (Oid(b"t" * 32), Kind.TREE)],
        "bbbb": [(line[1], Kind.COMMIT), (line[2], Kind.COMMIT)],
        "cccc": [(Oid(b"t" * 32), Kind.TREE)],
    }
    refs = Refs(catalog, objects, lambda prefix: others.get(prefix, []))
    assert refs.resolve("aaaa") == line[1]
    with pytest.raises(Invalid) as caught:
        refs.resolve("bbbb")
    assert caught.value.kind == "ambiguous"
    assert caught.value.details["candidates"] == sorted([line[1].hex(), line[2].hex()])
    assert line[1].hex() in caught.value.message
    assert kind_of(lambda: refs.resolve("cccc")) == "no_commit"


def test_resolve_accepts_branches_tags_head_and_parent_steps(
    refs: Refs, line: list[Oid], merge: Oid
) -> None:
    refs.create("main", merge)
    refs.create("v1", line[5], kind="tag")
    refs.create("both", line[1])
    refs.create("both", line[2], kind="tag")
    assert refs.resolve("main") == merge
    assert refs.resolve("v1") == line[5]
    assert refs.resolve("both") == refs.resolve("branch:both") == line[1]
    assert refs.resolve("tag:both") == line[2]
    assert refs.resolve("HEAD", "main") == refs.resolve("@", "main") == merge
    assert refs.resolve("HEAD~1", "main") == refs.resolve("HEAD~", "main") == line[9]
    assert refs.resolve("main^") == line[9]
    assert refs.resolve("main^2") == line[3]
    assert refs.resolve("main^2~3") == line[0]
    assert refs.resolve("main^0") == refs.resolve("main~0") == merge
    assert refs.resolve("main~~^") == line[7]
    assert kind_of(lambda: refs.resolve("main^3")) == "no_parent"
    assert kind_of(lambda: refs.resolve("main~99")) == "no_parent"


def test_a_name_wins_over_a_prefix(refs: Refs, line: list[Oid]) -> None:
    prefix = line[4].hex()[:6]
    refs.create(prefix, line[0])
    assert refs.resolve(prefix) == line[0]
    assert refs.resolve(line[4].hex()[:8]) == line[4]


def test_resolve_accepts_reflog_positions(refs: Refs, line: list[Oid]) -> None:
    refs.create("main", line[0])
    for old, new in pairwise(line[:6]):
        refs.move("main", new, expect=old)
    refs.create("t", line[8], kind="tag")
    assert [refs.resolve(f"main@{{{n}}}") for n in range(6)] == line[5::-1]
    assert refs.resolve("@{1}", "main") == refs.resolve("HEAD@{1}", "main") == line[4]
    assert refs.resolve("main@{1}~2") == line[2]
    assert refs.resolve("t@{0}") == refs.resolve("tag:t@{0}") == line[8]
    assert kind_of(lambda: refs.resolve("main@{6}")) == "no_reflog"
    assert kind_of(lambda: refs.resolve("nope@{0}")) == "no_ref"


def test_trimmed_reflog_still_knows_where_the_branch_came_from(
    refs: Refs, catalog: SqliteCatalog, line: list[Oid]
) -> None:
    refs.create("main", line[0])
    refs.move("main", line[1], expect=line[0])
    refs.move("main", line[2], expect=line[1])
    catalog.trim_ops(2**62)
    assert refs.resolve("main@{0}") == line[2]
    assert refs.resolve("main@{1}") == line[1]
    assert kind_of(lambda: refs.resolve("main@{2}")) == "no_reflog"


def test_a_reflog_longer_than_one_page_is_resolved(refs: Refs, line: list[Oid]) -> None:
    refs.create("main", line[0])
    for number in range(1100):
        refs.move("main", line[(number + 1) % 10], expect=line[number % 10])
    assert len(refs.reflog("main")) == 1101
    assert refs.resolve("main@{1100}") == line[0]


def test_head_without_a_branch_needs_exactly_one_branch(refs: Refs, line: list[Oid]) -> None:
    assert kind_of(lambda: refs.resolve("HEAD")) == "no_commit"
    refs.create("only", line[1])
    assert refs.resolve("HEAD") == line[1]
    refs.create("second", line[2])
    with pytest.raises(Invalid) as caught:
        refs.resolve("HEAD")
    assert caught.value.details["candidates"] == ["only", "second"]


def test_unknown_names_come_with_near_ones(refs: Refs, line: list[Oid]) -> None:
    refs.create("feature/login", line[1])
    with pytest.raises(NotFound, match="feature/login") as caught:
        refs.resolve("feature/logn")
    assert caught.value.details["near"] == ["feature/login"]


@pytest.mark.parametrize("text", ["a b", "\0", "~", "x" * 10_000, "main@{x}", "\udcff", "a:b:c"])
def test_a_malformed_ref_is_refused(refs: Refs, line: list[Oid], text: str) -> None:
    refs.create("main", line[0])
    refs.create("other", line[0])
    with pytest.raises((NotFound, Invalid)):
        refs.resolve(text)


def test_resolve_accepts_a_commit_info(refs: Refs, objects: ObjectStore, line: list[Oid]) -> None:
    assert refs.resolve(History(objects).info(line[3])) == line[3]


@pytest.mark.parametrize("wrong", ["", None, 5, b"main", ["main"]])
def test_a_ref_that_is_empty_or_not_text_is_refused(
    refs: Refs, line: list[Oid], wrong: Any
) -> None:
    refs.create("main", line[1])
    assert kind_of(lambda: refs.resolve(wrong, "main")) == "bad_ref"


def test_messages_have_no_internal_names(refs: Refs, line: list[Oid]) -> None:
    def said(act: Callable[[], object]) -> str:
        with pytest.raises(OrtetError) as caught:
            act()
        assert "branch:" not in caught.value.message
        assert "tag:" not in caught.value.message
        return caught.value.message

    for text in ("HEAD", "HEAD~1", "HEAD@{1}"):
        assert said(partial(refs.resolve, text, "main")) == ("no commit yet: run `ortet commit`")
    refs.create("feat", line[1])
    refs.create("v1", line[1], kind="tag")
    assert "there is a branch 'feat' already" in said(lambda: refs.create("feat", line[2]))
    assert "tag 'v1' already" in said(lambda: refs.create("v1", line[2], kind="tag"))
    assert "moved meanwhile" in said(lambda: refs.move("feat", line[3], expect=line[2]))
    assert "'nope'" in said(lambda: refs.resolve("branch:nope"))
    assert "`ortet tag`" in said(lambda: refs.delete("zzz", kind="tag"))
    assert "always means the branch you work on" in said(lambda: refs.create("HEAD", line[1]))
    assert "fewer than 9 commits come before" in said(lambda: refs.resolve("feat~9"))
