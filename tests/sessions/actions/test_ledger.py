"""The ledger of effects: keys travel with commits, and damaged rows never mean "not done"."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ortet
from ortet.backends.base import RowChange
from ortet.errors import Conflict, Corrupt, Invalid, NotDone, Unsettled
from ortet.hub.hub import Hub
from ortet.sessions.session import Session

paid: list[str] = []


def pay(invoice: str) -> dict[str, str]:
    paid.append(invoice)
    return {"paid": invoice}


@pytest.fixture(autouse=True)
def nothing_paid() -> None:
    paid.clear()


@pytest.fixture
def other(tmp_path: Path) -> Any:
    with ortet.open(tmp_path / "other") as found:
        yield found


def bill(s: Session, invoice: str) -> Any:
    return s.act(pay, invoice, key=invoice, replay="once")


def worked(hub: Hub) -> Session:
    """A session that paid on its branch, and whose fork paid something else."""
    s = hub.session("bill")
    s.say("user", "pay what is due")
    s.commit("asked")
    bill(s, "inv-7")
    s.commit("paid")
    (fork,) = s.fork()
    bill(fork, "inv-8")
    fork.commit("paid too")
    fork.pause()
    return s


def by_pull(hub: Hub, other: Hub, _: Path) -> None:
    other.pull(hub)


def by_push(hub: Hub, other: Hub, _: Path) -> None:
    hub.push(other)


def by_bundle(hub: Hub, other: Hub, tmp_path: Path) -> None:
    hub.push(tmp_path / "b.ortet")
    other.pull(tmp_path / "b.ortet")


def by_import(hub: Hub, other: Hub, tmp_path: Path) -> None:
    hub.export(["bill", "bill/1"], tmp_path / "b.ortet")
    other.import_(tmp_path / "b.ortet")


WAYS = [by_pull, by_push, by_bundle, by_import]


class TestTravel:
    @pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
    def test_no_effect_of_a_commit_that_arrives_is_done_again(
        self, hub: Hub, other: Hub, tmp_path: Path, way: Callable[..., None]
    ) -> None:
        worked(hub)
        way(hub, other, tmp_path)
        with other.session("go-on") as s:
            s.restore("bill")
            assert bill(s, "inv-7") == {"paid": "inv-7"}
            assert bill(s, "inv-8") == {"paid": "inv-8"}  # on the branch of the fork
            assert bill(s, "inv-9") == {"paid": "inv-9"}
        assert paid == ["inv-7", "inv-8", "inv-9"]
        other.verify()
        with other.session("another") as s:  # of another family, and goes on from the same history
            s.restore("bill")
            bill(s, "inv-9")
        assert paid == ["inv-7", "inv-8", "inv-9"]

    def test_what_was_done_elsewhere_is_known_after_it_comes_back(
        self, hub: Hub, other: Hub
    ) -> None:
        worked(hub).pause()
        other.pull(hub)
        with other.session("there") as s:
            s.restore("bill")
            bill(s, "inv-9")
            s.commit("paid there")
        hub.pull(other)
        with hub.session("bill") as s:
            assert bill(s, "inv-9") == {"paid": "inv-9"}
        assert paid.count("inv-9") == 1
        hub.verify()

    def test_what_a_session_did_before_it_restored_a_foreign_commit_stays_done(
        self, hub: Hub, other: Hub
    ) -> None:
        worked(hub)
        other.pull(hub)
        with other.session("s") as s:
            bill(s, "own")
            (fork,) = s.fork()
            s.restore("bill")
            bill(s, "own")
            bill(s, "later")
            bill(fork, "later")  # the fork did not follow: its family still shares all keys
        assert paid == ["inv-7", "inv-8", "own", "later"]

    def test_effect_that_was_not_ended_when_it_was_copied_is_unsettled(
        self, hub: Hub, other: Hub
    ) -> None:
        with hub.session("bill") as s:
            begun = s.actions.intend("pay", ["inv-7"], key="inv-7", replay="once").effect
            s.commit("begun")
            other.pull(hub)
            with other.session("t") as t:
                t.restore("bill")
                with pytest.raises(Unsettled) as caught:
                    bill(t, "inv-7")
                assert caught.value.details["id"] == begun.id
                assert [effect.id for effect in t.unsettled()] == [begun.id]
                t.actions.settle(begun.id, {"paid": "inv-7"})
                assert bill(t, "inv-7") == {"paid": "inv-7"}
                t.commit("settled")
            hub.pull(other)
            assert bill(s, "inv-7") == {"paid": "inv-7"}
        assert paid == []

    def test_merging_a_foreign_branch_adds_its_keys(self, hub: Hub, other: Hub) -> None:
        worked(hub)
        other.pull(hub)
        with other.session("s") as s:
            s.say("user", "hi")
            s.merge("bill")
            bill(s, "inv-7")
            bill(s, "inv-8")
        assert paid == ["inv-7", "inv-8"]

    def test_timeline_keys_travel_with_the_commit_that_knows_them(
        self, hub: Hub, other: Hub
    ) -> None:
        with hub.session("bill") as s:
            s.act(pay, "a", key="a", scope="timeline")
            s.commit("paid")
        other.pull(hub)
        with other.session("s") as t:
            t.restore("bill")
            t.act(pay, "a", key="a", scope="timeline")
        assert paid == ["a"]

    def test_unarchived_session_knows_its_effects(self, hub: Hub) -> None:
        worked(hub).pause()
        hub.archive("bill")
        hub.unarchive("bill")
        with hub.session("bill") as s:
            bill(s, "inv-7")
        assert paid == ["inv-7", "inv-8"]


class TestKeys:
    def test_once_needs_a_key(self, hub: Hub) -> None:
        with hub.session("s") as s:
            with pytest.raises(Invalid) as caught:
                s.act(pay, "a", replay="once")
            assert caught.value.kind == "no_key"
        assert paid == []

    def test_key_by_arguments_is_one_effect_for_equal_calls(self, hub: Hub) -> None:
        with hub.session("s") as s:
            for invoice in ("a", "b", "a"):
                s.act(pay, invoice, replay="once", key=ortet.by_arguments)
            with pytest.raises(Invalid) as caught:
                s.act(lambda _: None, object(), replay="once", key=ortet.by_arguments)
            assert caught.value.kind == "opaque_key"
        assert paid == ["a", "b"]

    def test_key_with_other_arguments_is_a_conflict_that_shows_both(self, hub: Hub) -> None:
        with hub.session("s") as s:
            s.act(pay, "a", key="k", replay="once")
            with pytest.raises(Conflict) as caught:
                s.act(pay, "b", key="k", replay="once")
            assert caught.value.kind == "key_reused"
            assert caught.value.details["known"] == "pay('a')"
            assert caught.value.details["given"] == "pay('b')"
        assert paid == ["a"]


class TestDamage:
    def rows(self, hub: Hub, s: Session) -> list[Any]:
        (ledger,) = s.internals.row.ledgers
        kinds = (f"deed/{ledger}", "deed-key")
        return [row for kind in kinds for row in hub.catalog.rows(kind)]

    def outcome(self, store: Path) -> str:
        """What another process gets when it asks for each effect again."""
        with ortet.open(store) as hub, hub.session("bill") as s:
            try:
                for invoice in ("inv-7", "inv-8"):
                    bill(s, invoice)
            except (Corrupt, Unsettled, Conflict) as error:
                return type(error).__name__
            return "known"

    def test_no_bit_of_the_rows_makes_an_effect_happen_again(self, tmp_path: Path) -> None:
        store, dice = tmp_path / "store", random.Random(7)
        with ortet.open(store) as hub:
            rows = self.rows(hub, worked(hub))
        found: dict[str, int] = {}
        for number in range(150):
            row = dice.choice(rows)
            field = dice.choice(["value", "value", "key", "kind"])
            whole = bytearray(
                getattr(row, field) if field == "value" else getattr(row, field).encode()
            )
            whole[dice.randrange(len(whole))] ^= 1 << dice.randrange(7 if field != "value" else 8)
            try:
                names = {} if field == "value" else {field: whole.decode()}
                value = bytes(whole) if field == "value" else row.value
                new = RowChange(names.get("kind", row.kind), names.get("key", row.key), value)
                with ortet.open(store) as hub:
                    gone = [] if not names else [RowChange(row.kind, row.key, None)]
                    hub.catalog.move([], verb="damage", rows=[*gone, new])
            except (UnicodeDecodeError, Invalid):
                continue  # no name that a catalog takes
            got = self.outcome(store)
            found[got] = found.get(got, 0) + 1
            assert paid == ["inv-7", "inv-8"], (row, new)
            with ortet.open(store) as hub:
                if number % 10:
                    hub.catalog.drop_row(new.kind, new.key)
                    hub.catalog.put_row(row.kind, row.key, row.value)
                    continue
                if got == "Corrupt":  # otherwise the row was read from the journal again
                    with pytest.raises(Corrupt):
                        hub.verify()
                hub.verify(repair=True)
                hub.catalog.drop_row(new.kind, new.key)
                hub.catalog.put_row(row.kind, row.key, row.value)
        assert found.get("Corrupt", 0) > 50, found

    def test_rows_that_are_lost_are_rebuilt_from_the_journals(self, tmp_path: Path) -> None:
        store = tmp_path / "store"
        with ortet.open(store) as hub:
            s = worked(hub)
            s.act(pay, "uncommitted", key="u")
            rows = self.rows(hub, s)
            hub.catalog.move(
                [], verb="lose", rows=[RowChange(row.kind, row.key, None) for row in rows]
            )
        with ortet.open(store) as hub:
            with pytest.raises(Corrupt, match="has no row"):
                hub.verify()
            hub.verify(repair=True)
            hub.verify()
            with hub.session("bill") as s:
                assert [bill(s, one)["paid"] for one in ("inv-7", "inv-8")] == ["inv-7", "inv-8"]
                s.act(pay, "uncommitted", key="u")
        assert paid == ["inv-7", "inv-8", "uncommitted"]

    def test_effects_of_the_own_history_are_known_without_any_row(self, tmp_path: Path) -> None:
        store = tmp_path / "store"
        with ortet.open(store) as hub:
            s = worked(hub)
            rows = self.rows(hub, s)
            hub.catalog.move(
                [], verb="lose", rows=[RowChange(row.kind, row.key, None) for row in rows]
            )
        with ortet.open(store) as hub, hub.session("bill") as s:
            assert bill(s, "inv-7") == {"paid": "inv-7"}
        assert paid == ["inv-7", "inv-8"]


class TestTable:
    """What the next call does, by class and by what the first call did."""

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, NotDone, OSError])
    @pytest.mark.parametrize("replay", ["pure", "recorded", "idempotent", "once"])
    def test_after_an_exception(self, hub: Hub, replay: Any, error: type[BaseException]) -> None:
        calls: list[int] = []

        def work() -> str:
            calls.append(1)
            if len(calls) == 1:
                raise error("no")
            return "done"

        options: dict[str, Any] = {"key": "k", "replay": replay, "safe_errors": (OSError,)}
        with hub.session("s") as s:
            with pytest.raises(error):
                s.act(work, **options)
            if replay == "once" and error not in (NotDone, OSError):
                for key in ("k", "another"):
                    with pytest.raises(Unsettled):
                        s.act(work, **(options | {"key": key}))
                assert calls == [1]
                (left,) = s.unsettled()
                s.actions.settle(left.id, failed=True)
                assert s.unsettled() == []
            assert s.act(work, **options) == "done"
            assert len(calls) == 2

    @pytest.mark.parametrize("replay", ["pure", "recorded", "idempotent", "once"])
    def test_after_it_returned(self, hub: Hub, replay: Any) -> None:
        calls: list[int] = []

        def work() -> int:
            calls.append(1)
            return len(calls)

        with hub.session("s") as s:
            found = [s.act(work, key="k", replay=replay) for _ in range(2)]
        assert found == ([1, 2] if replay == "pure" else [1, 1])

    @pytest.mark.parametrize("replay", ["pure", "recorded", "idempotent", "once"])
    def test_after_its_process_died(self, hub: Hub, replay: Any) -> None:
        s = hub.session("s")
        key = "" if replay in ("pure", "recorded") else "k"
        s.actions.intend("work", key=key, replay=replay)
        s.internals.lifecycle.release()  # as a kill: no outcome is recorded
        with hub.session("s") as s:
            if replay in ("recorded", "once"):
                (left,) = s.unsettled()
                assert f"({left.id})" in s.briefing().markdown
                assert any(left.id in str(m.content) for m in s.context("work").messages)
                with pytest.raises(Unsettled):  # whatever the key: the model has another call id
                    s.act(lambda: 1, name="work", key="another", replay=replay)
            else:
                assert s.act(lambda: 1, name="work", key=key, replay=replay) == 1


class TestWhere:
    def test_restore_undoes_an_effect_in_the_workspace_and_frees_its_key(
        self, hub: Hub, work: Path
    ) -> None:
        def write(name: str) -> str:
            (work / name).write_text("1")
            return f"wrote {name}"

        with hub.session("s", workspace=work) as s:
            s.commit("empty")
            s.act(write, "calc.py", key="call_0", where="workspace")
            s.run("touch other", key="call_1")
            s.act(pay, "a", key="a")
            s.commit("written")
            report = s.rewind(1)
            assert [effect.name for effect in report.deeds] == ["pay"]
            assert not (work / "calc.py").exists()
            assert s.act(write, "calc.py", key="call_0", where="workspace") == "wrote calc.py"
            s.run("touch other", key="call_1")
            assert (work / "calc.py").exists()
            assert (work / "other").exists()
            s.act(pay, "a", key="a")
        assert paid == ["a"]

    def test_what_stays_done_is_told_to_whoever_goes_on(self, hub: Hub, work: Path) -> None:
        with hub.session("s", workspace=work) as s:
            before = s.commit("before").oid
            s.act(pay, "a", key="invoice 7", why="it is due")
            s.run("touch file")
            s.restore(before)
            text = s.briefing().markdown
            assert "Done on another branch, and not undone" in text
            assert "`pay`: it is due (key invoice 7)" in text
            assert "touch file" not in text
            assert [one["key"] for one in s.memory.working().elsewhere] == ["invoice 7"]
            assert "Done on another branch" in str(s.context("go on").messages)
            (fork,) = s.fork()
            assert "invoice 7" in fork.briefing().markdown
