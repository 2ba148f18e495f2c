"""budget and bill: limits, amounts spent, and raising a limit to continue."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.fixtures.commands import Ortet

from ortet.config.environment import open_hub
from ortet.errors import Refused


@pytest.fixture
def here(ortet: Ortet, tmp_path: Path) -> Path:
    ortet("session", "new", "s", "--budget", "usd=5", cwd=tmp_path)
    return tmp_path


def spend(ortet: Ortet, name: str = "s", **amounts: float) -> None:
    with open_hub(ortet.store) as hub, hub.session(name) as s:
        s.spend(model="large", **amounts)


class TestBudget:
    def test_budget_shows_limits_spent_and_left(self, ortet: Ortet, here: Path) -> None:
        spend(ortet, usd=1.25, tokens=10)
        found = ortet.json("budget", "s", cwd=here)
        assert found["limits"] == {"usd": 5.0} and found["left"] == {"usd": 3.75}
        assert found["spent"] == {"usd": 1.25, "tokens": 10} and found["soft"] == {}
        out = ortet("budget", "s", cwd=here).out.splitlines()
        assert [line.split() for line in out] == [
            ["counter", "limit", "soft", "spent", "left"],
            ["tokens", "-", "-", "10", "-"],
            ["usd", "5", "-", "1.25", "3.75"],
        ]

    def test_a_spent_budget_can_be_raised(self, ortet: Ortet, here: Path) -> None:
        with pytest.raises(Refused):
            spend(ortet, usd=6)
        assert ortet.json("budget", "s", cwd=here)["left"] == {"usd": 0.0}
        assert ortet.json("budget", "s", "--raise", "usd=4", cwd=here)["left"] == {"usd": 3.0}
        with open_hub(ortet.store) as hub, hub.session("s") as s:
            assert s.act(lambda: 1, name="go on") == 1

    def test_a_budget_limit_can_be_set_and_removed(self, ortet: Ortet, here: Path) -> None:
        words = ["--set", "tokens=100", "--soft", "usd=4", "--set", "usd=none"]
        found = ortet.json("budget", "s", *words, cwd=here)
        assert (found["limits"], found["soft"]) == ({"tokens": 100.0}, {"usd": 4.0})
        ortet("session", "new", "free", cwd=here)
        assert ortet("budget", "free", cwd=here).out == "no limit, and nothing spent\n"

    def test_invalid_budget_arguments_are_refused(self, ortet: Ortet, here: Path) -> None:
        for words, kind in (
            (["--set", "usd"], "bad_budget"),
            (["--set", "usd=much"], "bad_budget"),
            (["--set", "usd=-1"], "bad_budget"),
            (["--set", "usd=nan"], "bad_budget"),
            (["--raise", "tokens=1"], "no_limit"),
        ):
            assert ortet.kind("budget", "s", *words, cwd=here, code=2) == kind, words
        assert ortet.json("budget", "s", cwd=here)["limits"] == {"usd": 5.0}


class TestBill:
    def test_bill_groups_by_session_agent_model_and_day(self, ortet: Ortet, here: Path) -> None:
        ortet("session", "new", "t", "--agent", "other", cwd=here)
        spend(ortet, usd=1)
        spend(ortet, usd=2)
        with open_hub(ortet.store) as hub, hub.session("t", agent="other") as s:
            s.spend(tokens=7, model="small")
        by_session = ortet.json("bill", cwd=here)
        assert {one["name"]: one["spends"] for one in by_session} == {"s": 2, "t": 1}
        by_agent = ortet.json("bill", "--by", "agent", cwd=here)
        assert [one["key"] for one in by_agent] == ["default", "other"]
        by_model = ortet.json("bill", "--by", "model", cwd=here)
        assert by_model[0]["amounts"] == {"usd": 3.0}
        today = datetime.now(UTC).date().isoformat()
        days = [one["key"] for one in ortet.json("bill", "--by", "day", cwd=here)]
        assert days[-1] <= today
        head, *rows = ortet("bill", "--by", "model", cwd=here).out.splitlines()
        assert head.split() == ["model", "spends", "tokens", "usd"]
        assert rows[0].split() == ["large", "2", "-", "3"]

    def test_bill_since_filters_by_time(self, ortet: Ortet, here: Path) -> None:
        spend(ortet, usd=1)
        for when in ("90m", "24h", "7d", "2020-01-01"):
            assert len(ortet.json("bill", "--since", when, cwd=here)) == 1, when
        assert ortet("bill", "--since", "2999-01-01", cwd=here).out == "nothing was spent\n"
        assert ortet.kind("bill", "--since", "soon", cwd=here, code=2) == "bad_time"
        said = ortet("bill", "--since", "soon", cwd=here, code=2).err
        assert "7d" in said and "2026-01-31" in said
        assert ortet.kind("bill", "--by", "moon", cwd=here, code=2) == "bad_usage"

    def test_bill_keeps_the_spend_of_a_removed_session(self, ortet: Ortet, here: Path) -> None:
        spend(ortet, usd=1)
        ortet("session", "rm", "s", "--yes", cwd=here)
        assert ortet.json("bill", cwd=here)[0]["amounts"] == {"usd": 1.0}


def test_quiet_budget_and_bill_print_nothing(ortet: Ortet, here: Path) -> None:
    for words in (["budget", "s"], ["budget", "s", "--raise", "usd=1"], ["bill"]):
        done = ortet(*words, "-q", cwd=here)
        assert (done.out, done.err) == ("", ""), words
