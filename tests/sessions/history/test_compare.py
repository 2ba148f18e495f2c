"""What led to a commit, and what differs between two: also where they are of other lines, were
merged, erased, or hold no files."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from ortet.hub.hub import Hub
from ortet.ids import Oid, from_hex
from ortet.sessions.history.compare import compare, compare_now, explain_commit, files_now
from ortet.sessions.session import Session


def at(session: Session, message: str = "") -> Oid:
    return from_hex(session.commit(message).oid)


def test_each_event_is_attributed_to_exactly_one_commit(hub: Hub) -> None:
    with hub.session("s") as s:
        oids = []
        for number in range(4):
            s.think(f"thought {number}")
            s.say("user", "more")
            oids.append(at(s))
        found = [explain_commit(hub.internals.services, oid) for oid in oids]
        assert [one.reasons[-1].text for one in found] == [f"thought {n}" for n in range(4)]
        for before, after in pairwise(found):
            assert after.first == before.last + 1
        assert found[0].first == 1
        assert found[-1].kinds == {"thought": 1, "message": 1}


def test_merge_commit_lists_facts_learned_by_the_merged_fork(hub: Hub) -> None:
    with hub.session("s") as s:
        s.say("user", "base")
        (kid,) = s.fork(1, machine=False)
        kid.learn("the kid knows")
        at(kid)
        s.say("user", "ours")
        at(s)
        merged = s.merge(kid)
        found = explain_commit(hub.internals.services, from_hex(merged.commit.oid))
        assert [one.text for one in found.learned] == ["the kid knows"]
        assert found.files == []


def test_compare_of_branches_forked_at_an_event_lists_messages_of_each_side(hub: Hub) -> None:
    """A fork at an event seals what it shares anew: the same events, other objects."""
    with hub.session("s") as s:
        s.say("user", "one")
        event = s.say("user", "two")
        s.say("user", "three")
        mine = at(s)
        other = hub.whatif(s.id, event.seq, message="TWO")
        theirs = at(other)
        found = compare(hub.internals.services, mine, theirs)
        assert [one.content for one in found.left.messages] == ["two", "three"]
        assert [one.content for one in found.come.messages] == ["TWO"]
        few = compare(hub.internals.services, mine, theirs, limit=1)
        assert (few.left.count, [one.content for one in few.left.messages]) == (2, ["three"])
        same = compare(hub.internals.services, mine, mine)
        assert (same.left.count, same.come.count, same.memory.same) == (0, 0, True)


def test_compare_of_unrelated_sessions_lists_all_messages(hub: Hub) -> None:
    with hub.session("a", goal="go left") as a, hub.session("b", goal="go right") as b:
        a.say("user", "here")
        b.say("user", "there")
        found = compare(hub.internals.services, at(a), at(b))
        assert (found.before.goal, found.after.goal) == ("go left", "go right")
        assert (found.left.count, found.come.count) == (1, 1)


def test_compare_with_the_present_after_a_restore_lists_both_sides(hub: Hub, work: Path) -> None:
    with hub.session("s", workspace=work) as s:
        s.say("user", "one")
        first = at(s)
        s.say("user", "two")
        (work / "a.txt").unlink()
        second = at(s)
        s.restore(first.hex())
        s.say("user", "again")
        now = compare_now(s, second, files_now(s))
        assert [one.content for one in now.left.messages] == ["two"]
        assert [one.content for one in now.come.messages] == ["again"]
        assert [(one.path, one.kind) for one in now.files] == [("a.txt", "added")]


def test_compare_with_a_commit_without_files_lists_all_files_as_added_or_removed(
    hub: Hub, work: Path
) -> None:
    with hub.session("mind") as mind, hub.session("files", workspace=work) as files:
        mind.say("user", "hello")
        bare, full = at(mind), at(files)
        assert {one.kind for one in compare(hub.internals.services, bare, full).files} == {"added"}
        assert {one.kind for one in compare(hub.internals.services, full, bare).files} == {
            "removed"
        }


def test_compare_counts_set_aside_messages_only_on_the_side_that_shows_them(hub: Hub) -> None:
    with hub.session("s") as s:
        s.say("user", "one")
        left = s.say("assistant", "two").seq
        old = at(s)
        s.internals.pipeline.add("aside", {"out": [[left, left]]})
        s.say("assistant", "other")
        gone = s.say("user", "and that").seq
        middle = at(s)
        s.internals.pipeline.add("aside", {"out": [[left + 1, gone]], "back": [[left, left]]})
        s.say("user", "three")
        new = at(s)
        s.internals.pipeline.add("aside", {"back": [[gone, gone]]})
        s.say("user", "four")
        for found, away, come in (
            (compare(hub.internals.services, old, middle), ["two"], ["other", "and that"]),
            (compare(hub.internals.services, middle, old), ["other", "and that"], ["two"]),
            (
                compare(hub.internals.services, middle, new),
                ["other", "and that"],
                ["two", "three"],
            ),
            (compare(hub.internals.services, old, new), [], ["three"]),
            (compare_now(s, middle, files_now(s)), ["other"], ["two", "three", "four"]),
            (compare_now(s, new, files_now(s)), [], ["and that", "four"]),
        ):
            assert [one.content for one in found.left.messages] == away
            assert [one.content for one in found.come.messages] == come
            assert (found.left.count, found.come.count) == (len(away), len(come))


def test_compare_counts_erased_events_but_does_not_show_them(hub: Hub) -> None:
    with hub.session("s") as s:
        s.say("user", "nothing")
        first = at(s)
        event = s.think("a thought that must go")
        s.think("one that stays")
        second = at(s)
    hub.erase("s", seqs=[event.seq])
    found = explain_commit(hub.internals.services, second)
    assert [one.text for one in found.reasons] == ["one that stays"]
    assert found.kinds["thought"] == 2
    assert compare(hub.internals.services, first, second).come.count == 0


def test_long_reasons_are_cut_and_counted(hub: Hub) -> None:
    with hub.session("s") as s:
        for number in range(30):
            s.think(f"{number} " + "x" * 5000)
        found = explain_commit(hub.internals.services, at(s), limit=10)
        assert found.more
        assert [one.text.split()[0] for one in found.reasons] == [str(n) for n in range(20, 30)]
        assert all(len(one.text) <= 4000 for one in found.reasons)
