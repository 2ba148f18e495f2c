"""The arithmetic of budgets, alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortet.errors import Invalid
from ortet.session import purses
from ortet.session.purses import Account, Limits, Purse

SPENDS = st.lists(
    st.tuples(st.integers(0, 3), st.floats(0, 5), st.sampled_from(["pay", "give"])), max_size=40
)


def test_reservation_draws_more_than_one_spend_needs() -> None:
    account, purse = purses.pay(Account(limits={"usd": 8.0}), Purse(), {"usd": 0.5})
    assert purse == Purse({"usd": 1.0}, {"usd": 0.5})
    assert account.granted == {"usd": 1.0}
    again, more = purses.pay(account, purse, {"usd": 0.5})
    assert again == account
    assert more.spent == {"usd": 1.0}


def test_spending_without_a_limit_is_only_counted() -> None:
    account, purse = purses.pay(Account(limits={"usd": 1.0}), Purse(), {"tokens": 7})
    assert (account.granted, purse) == ({}, Purse({}, {"tokens": 7}))


def test_small_amounts_reach_the_limit_exactly() -> None:
    account, purse = Account(limits={"usd": 1.0}), Purse()
    for _ in range(10):
        before = account
        account, purse = purses.pay(account, purse, {"usd": 0.1})
        assert purses.over(before, account) == []
    assert purses.empty(account, purse) == ["usd"]
    after, _ = purses.pay(account, purse, {"usd": 0.1})
    assert purses.over(account, after) == ["usd"]


@given(SPENDS)
def test_granted_total_always_equals_reserved_or_spent_amounts(
    spends: list[tuple[int, float, str]],
) -> None:
    account = Account(limits={"usd": 20.0})
    held = [Purse() for _ in range(4)]
    paid = 0.0
    overrun = 0.0
    for who, amount, verb in spends:
        if verb == "pay":
            before = account
            account, held[who] = purses.pay(account, held[who], {"usd": amount})
            paid += amount
            overrun += amount if purses.over(before, account) else 0.0
        else:
            account, held[who] = purses.give_back(account, held[who])
            assert held[who].idle("usd") == 0
        out = sum(max(p.granted.get("usd", 0.0), p.spent.get("usd", 0.0)) for p in held)
        assert account.granted.get("usd", 0.0) == pytest.approx(out)
    spent = purses.total(held).get("usd", 0.0)
    assert spent == pytest.approx(paid)
    assert spent - overrun <= 20.0 + 1e-6  # only what was told as too much goes beyond the limit


def test_new_limits_take_back_unspent_reservations() -> None:
    account = Account(limits={"usd": 10.0}, granted={"usd": 7.0})
    held = {"a": Purse({"usd": 5.0}, {"usd": 1.0, "tokens": 9}), "b": Purse({"usd": 2.0}, {})}
    new = purses.relimit(account, held, Limits({"usd": 2.0, "tokens": 8.0}))
    assert new.limits == {"usd": 2.0, "tokens": 8.0}
    assert new.granted == {"usd": 1.0, "tokens": 9.0}
    assert purses.called_in(new, held["a"]).granted == {"usd": 1.0, "tokens": 9.0}
    assert purses.empty(new, purses.called_in(new, held["a"])) == ["tokens"]
    assert purses.relimit(new, held, Limits({"tokens": None})).limits == {"usd": 2.0}


@pytest.mark.parametrize(
    "wrong",
    [{"usd": -1}, {"usd": "5"}, {"usd": True}, {"usd": float("nan")}, {"soft": 3}, {"": 1}],
)
def test_bad_budget_limits_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(Invalid) as caught:
        purses.parse_limits(wrong)
    assert caught.value.kind == "bad_budget"
