"""History: order, ancestors and merge bases, also with clocks that disagree."""

from __future__ import annotations

import stat
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ortet._util.codec import encode
from ortet.errors import Corrupt, NotFound
from ortet.history.commits import CommitInfo, History
from ortet.history.records import Commit, Image, State, TreeEntry
from ortet.history.tree.tree import Trees
from ortet.ids import Oid
from ortet.objects.base import Kind, ObjectStore

REUSED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)

MakeCommit = Callable[..., Oid]


@pytest.fixture
def commit(objects: ObjectStore) -> MakeCommit:
    """commit("message", *parents, time=...) -> Oid"""
    state = objects.put(Kind.STATE, encode(State()))

    def make(message: str, *parents: Oid, time: int = 0) -> Oid:
        record = Commit(state, list(parents), message, time, "me")
        return objects.put(Kind.COMMIT, encode(record))

    return make


@pytest.fixture
def history(objects: ObjectStore) -> History:
    return History(objects)


def messages(infos: object) -> str:
    assert hasattr(infos, "__iter__")
    return "".join(info.message for info in infos)


def test_info_shows_hex(history: History, commit: MakeCommit, objects: ObjectStore) -> None:
    a = commit("a", time=5)
    b = commit("b", a, time=6)
    state = objects.hasher.oid(encode(State())).hex()
    assert history.info(b) == CommitInfo(b.hex(), state, [a.hex()], "b", 6, "me")


def test_reading_another_object_as_a_commit_is_refused(
    history: History, objects: ObjectStore
) -> None:
    with pytest.raises(NotFound):
        history.read(Oid(b"x" * 32))
    with pytest.raises(Corrupt):
        history.read(objects.put(Kind.STATE, encode(State())))


def test_image_returns_the_image_of_a_commit(
    history: History, objects: ObjectStore, trees: Trees
) -> None:
    tree = trees.empty()
    root = TreeEntry(b"", stat.S_IFDIR | 0o755, 0, data=tree.oid, cid=tree.cid)
    image = objects.put(Kind.IMAGE, encode(Image(root)))
    state = objects.put(Kind.STATE, encode(State(machine=image)))
    oid = objects.put(Kind.COMMIT, encode(Commit(state, [], "", 0, "")))
    assert history.image(oid) == Image(root)


def test_image_of_a_commit_without_files_raises_no_files(
    history: History, commit: MakeCommit
) -> None:
    with pytest.raises(NotFound) as caught:
        history.image(commit("a"))
    assert caught.value.kind == "no_files"


def test_log_reads_only_as_many_commits_as_its_limit(
    history: History, commit: MakeCommit, reads: list[Oid]
) -> None:
    tip = commit("0")
    for number in range(1, 1000):
        tip = commit(str(number), tip, time=number)
    assert [info.message for info in history.log(tip, limit=3)] == ["999", "998", "997"]
    assert len(reads) <= 4
    assert len(list(history.log(tip))) == 1000
    assert list(history.log(tip, limit=0)) == []


def test_log_shows_children_first_whatever_the_clocks_say(
    history: History, commit: MakeCommit
) -> None:
    a = commit("a", time=100)
    b = commit("b", a, time=1)
    c = commit("c", a, time=2)
    d = commit("d", b, time=50)
    m = commit("m", d, c, time=0)
    assert messages(history.log(m)) == "mdcba"
    assert messages(history.log(m, first_parent=True)) == "mdba"
    assert messages(history.log(m, limit=2)) == "md"


def test_parent_and_ancestor_steps_are_resolved(history: History, commit: MakeCommit) -> None:
    a = commit("a")
    b = commit("b", a)
    c = commit("c", a, time=1)
    m = commit("m", b, c)
    assert [history.parent(m, n) for n in (0, 1, 2)] == [m, b, c]
    assert [history.nth_parent(m, n) for n in (0, 1, 2)] == [m, b, a]
    with pytest.raises(NotFound):
        history.parent(m, 3)
    with pytest.raises(NotFound):
        history.nth_parent(m, 3)


def test_merge_base_is_the_ancestor_or_none_for_unrelated_commits(
    history: History, commit: MakeCommit
) -> None:
    a = commit("a")
    b = commit("b", a)
    other = commit("other")
    assert history.merge_base(a, b) == a
    assert history.merge_base(b, a) == a
    assert history.merge_base(a, a) == a
    assert history.merge_base(b, other) is None


def test_merge_base_of_a_criss_cross_is_always_the_same(
    history: History, commit: MakeCommit
) -> None:
    root = commit("root")
    a = commit("a", root, time=1)
    b = commit("b", root, time=2)
    left = commit("left", a, b, time=3)
    right = commit("right", b, a, time=4)
    assert history.merge_base(left, right) == history.merge_base(right, left) == b


def test_merge_base_reads_only_down_to_the_fork(
    history: History, commit: MakeCommit, reads: list[Oid]
) -> None:
    tip = commit("0")
    for number in range(1, 1000):
        tip = commit(str(number), tip, time=number)
    ours, theirs = commit("ours", tip, time=2000), commit("theirs", tip, time=2001)
    assert history.merge_base(ours, theirs) == tip
    assert not history.is_ancestor(ours, theirs)
    assert len(reads) < 10


@st.composite
def shapes(draw: st.DrawFn) -> list[tuple[list[int], int]]:
    """(indexes of parents, time) for each commit; times are arbitrary."""
    size = draw(st.integers(1, 14))
    found: list[tuple[list[int], int]] = []
    for n in range(size):
        older = st.integers(max(0, n - 5), n - 1) if n else st.nothing()
        parents = draw(st.lists(older, max_size=2, unique=True)) if n else []
        found.append((parents, draw(st.integers(0, 5))))
    return found


@REUSED
@given(shape=shapes())
def test_history_queries_agree_with_a_set_model(
    history: History, commit: MakeCommit, shape: list[tuple[list[int], int]]
) -> None:
    oids: list[Oid] = []
    above: dict[Oid, set[Oid]] = {}
    for n, (parents, time) in enumerate(shape):
        oid = commit(str(n), *(oids[p] for p in parents), time=time)
        above[oid] = {oid}.union(*(above[oids[p]] for p in parents))
        oids.append(oid)
    for a in oids:
        assert set(history.ancestors(a)) == above[a]
        order = [info.oid for info in history.log(a)]
        assert sorted(order) == sorted(oid.hex() for oid in above[a])
        place = {oid: at for at, oid in enumerate(order)}
        assert all(place[o.hex()] <= place[x.hex()] for o in above[a] for x in above[o])
        for b in oids:
            assert history.is_ancestor(a, b) == (a in above[b])
            common = above[a] & above[b]
            best = {x for x in common if not any(x in above[y] for y in common - {x})}
            found = history.merge_base(a, b)
            assert found in best if best else found is None
            assert found == history.merge_base(b, a)
