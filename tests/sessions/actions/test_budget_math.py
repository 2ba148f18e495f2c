"""The arithmetic of budgets, alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortet.errors import Invalid
from ortet.sessions.actions import budget_math
from ortet.sessions.actions.budget_math import BudgetLimits, FamilyBudget, Reservation

SPENDS = st.lists(
    st.tuples(st.integers(0, 3), st.floats(0, 5), st.sampled_from(["pay", "give"])), max_size=40
)


def test_reservation_draws_more_than_one_spend_needs() -> None:
    account, purse = budget_math.pay(FamilyBudget(limits={"usd": 8.0}), Reservation(), {"usd": 0.5})
    assert purse == Reservation({"usd": 1.0}, {"usd": 0.5})
    assert account.granted == {"usd": 1.0}
    again, more = budget_math.pay(account, purse, {"usd": 0.5})
    assert again == account
    assert more.spent == {"usd": 1.0}


def test_spending_without_a_limit_is_only_counted() -> None:
    account, purse = budget_math.pay(
        FamilyBudget(limits={"usd": 1.0}), Reservation(), {"tokens": 7}
    )
    assert (account.granted, purse) == ({}, Reservation({}, {"tokens": 7}))


def test_small_amounts_reach_the_limit_exactly() -> None:
    account, purse = FamilyBudget(limits={"usd": 1.0}), Reservation()
    for _ in range(10):
        before = account
        account, purse = budget_math.pay(account, purse, {"usd": 0.1})
        assert budget_math.over_limit(before, account) == []
    assert budget_math.exhausted_counters(account, purse) == ["usd"]
    after, _ = budget_math.pay(account, purse, {"usd": 0.1})
    assert budget_math.over_limit(account, after) == ["usd"]


@given(SPENDS)
def test_granted_total_always_equals_reserved_or_spent_amounts(
    spends: list[tuple[int, float, str]],
) -> None:
    account = FamilyBudget(limits={"usd": 20.0})
    held = [Reservation() for _ in range(4)]
    paid = 0.0
    overrun = 0.0
    for who, amount, verb in spends:
        if verb == "pay":
            before = account
            account, held[who] = budget_math.pay(account, held[who], {"usd": amount})
            paid += amount
            overrun += amount if budget_math.over_limit(before, account) else 0.0
        else:
            account, held[who] = budget_math.return_unspent(account, held[who])
            assert held[who].unspent("usd") == 0
        out = sum(max(p.granted.get("usd", 0.0), p.spent.get("usd", 0.0)) for p in held)
        assert account.granted.get("usd", 0.0) == pytest.approx(out)
    spent = budget_math.total(held).get("usd", 0.0)
    assert spent == pytest.approx(paid)
    assert spent - overrun <= 20.0 + 1e-6  # only what was told as too much goes beyond the limit


def test_new_limits_take_back_unspent_reservations() -> None:
    account = FamilyBudget(limits={"usd": 10.0}, granted={"usd": 7.0})
    held = {
        "a": Reservation({"usd": 5.0}, {"usd": 1.0, "tokens": 9}),
        "b": Reservation({"usd": 2.0}, {}),
    }
    new = budget_math.relimit(account, held, BudgetLimits({"usd": 2.0, "tokens": 8.0}))
    assert new.limits == {"usd": 2.0, "tokens": 8.0}
    assert new.granted == {"usd": 1.0, "tokens": 9.0}
    assert budget_math.reset_grants(new, held["a"]).granted == {"usd": 1.0, "tokens": 9.0}
    assert budget_math.exhausted_counters(new, budget_math.reset_grants(new, held["a"])) == [
        "tokens"
    ]
    assert budget_math.relimit(new, held, BudgetLimits({"tokens": None})).limits == {"usd": 2.0}


@pytest.mark.parametrize(
    "wrong",
    [{"usd": -1}, {"usd": "5"}, {"usd": True}, {"usd": float("nan")}, {"soft": 3}, {"": 1}],
)
def test_bad_budget_limits_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(Invalid) as caught:
        budget_math.parse_limits(wrong)
    assert caught.value.kind == "bad_budget"


@pytest.mark.parametrize(
    "wrong",
    [
        {"usd": -1},
        {"usd": -0.01},
        {"usd": "5"},
        {"usd": True},
        {"usd": None},
        {"usd": float("inf")},
        {"usd": float("nan")},
        {"usd": 1, "tokens": -1},
        {"": 1},
        {"a\nb": 1},
        {7: 1},
    ],
)
def test_amount_that_is_no_number_from_zero_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(Invalid) as caught:
        budget_math.check_amounts(wrong)
    assert caught.value.kind == "bad_amount"


def test_amount_of_zero_or_of_any_printable_counter_is_accepted() -> None:
    amounts = {"usd": 0, "tokens": 0.5, "web pages": 1e300}
    assert budget_math.check_amounts(amounts) == amounts
    assert budget_math.parse_limits({"usd": 0, "soft": None}) == BudgetLimits({"usd": 0.0}, {})


def test_accounts_purses_and_limits_cannot_be_changed_in_place() -> None:
    for value in (FamilyBudget(), Reservation(), BudgetLimits()):
        name = value.__struct_fields__[0]
        with pytest.raises(AttributeError):
            setattr(value, name, {})


def test_share_is_exceeded_only_by_more_than_the_share() -> None:
    share = {"usd": 1.0}
    assert budget_math.over_share(Reservation(spent={}, share=share)) == []
    assert budget_math.over_share(Reservation(spent={"usd": 0.5}, share=share)) == []
    assert budget_math.over_share(Reservation(spent={"usd": 1.0}, share=share)) == []
    assert budget_math.over_share(Reservation(spent={"usd": 1.0 + 0.5e-9}, share=share)) == []
    assert budget_math.over_share(Reservation(spent={"usd": 1.0 + 2e-9}, share=share)) == ["usd"]


def test_share_is_used_up_when_all_of_it_is_spent() -> None:
    share = {"usd": 1.0}
    assert budget_math.exhausted_shares(Reservation(spent={}, share=share)) == []
    assert budget_math.exhausted_shares(Reservation(spent={"usd": 0.5}, share=share)) == []
    assert budget_math.exhausted_shares(Reservation(spent={"usd": 1.0 - 2e-9}, share=share)) == []
    assert budget_math.exhausted_shares(Reservation(spent={"usd": 1.0 - 0.5e-9}, share=share)) == [
        "usd"
    ]
    assert budget_math.exhausted_shares(Reservation(spent={"usd": 1.0}, share=share)) == ["usd"]
    assert budget_math.exhausted_shares(Reservation(spent={}, share={"usd": 0.0})) == ["usd"]


def test_reserved_share_draws_on_the_limit_and_unlimited_counters_only_on_the_share() -> None:
    account = FamilyBudget(limits={"usd": 8.0}, granted={"usd": 1.0})
    after, purse = budget_math.reserve(account, {"usd": 2, "tokens": 5})
    assert after.granted == {"usd": 3.0}
    assert purse == Reservation({"usd": 2.0}, {}, {"usd": 2.0, "tokens": 5.0})


def test_give_back_returns_what_is_unspent_and_never_makes_the_account_negative() -> None:
    account = FamilyBudget(limits={"usd": 9.0}, granted={"usd": 6.0})
    purse = Reservation({"usd": 5.0}, {"usd": 2.0})
    assert budget_math.return_unspent(account, purse) == (
        FamilyBudget(limits={"usd": 9.0}, granted={"usd": 3.0}),
        Reservation({"usd": 2.0}, {"usd": 2.0}),
    )
    after, kept = budget_math.return_unspent(
        FamilyBudget(limits={"usd": 9.0}), Reservation({"usd": 5.0}, {})
    )
    assert (after.granted, kept.granted) == ({"usd": 0.0}, {"usd": 0.0})
    after, _ = budget_math.return_unspent(account, Reservation({"usd": 1.0}, {"usd": 4.0}))
    assert after.granted == {"usd": 6.0}  # an overrun purse holds nothing to return


def test_limit_of_zero_leaves_nothing_to_an_unused_account() -> None:
    assert budget_math.exhausted_counters(FamilyBudget(limits={"usd": 0.0}), Reservation()) == [
        "usd"
    ]
    assert budget_math.exhausted_counters(FamilyBudget(limits={"usd": 0.5}), Reservation()) == []
    full = FamilyBudget(limits={"usd": 2.0}, granted={"usd": 2.0})
    assert budget_math.exhausted_counters(full, Reservation({"usd": 0.5}, {"usd": 0.5})) == ["usd"]
    assert budget_math.exhausted_counters(full, Reservation({"usd": 0.5}, {"usd": 0.25})) == []


def test_purse_that_spent_nothing_keeps_nothing_under_new_limits() -> None:
    account = FamilyBudget(limits={"usd": 2.0})
    assert budget_math.reset_grants(account, Reservation({"usd": 1.0}, {})).granted == {"usd": 0.0}
    assert budget_math.relimit(account, {"a": Reservation()}, BudgetLimits()).granted == {
        "usd": 0.0
    }


@pytest.mark.parametrize(
    ("limit", "overrun", "is_over"),
    [
        (0.5, 0.5e-9, False),
        (0.5, 1.5e-9, True),
        (0.0, 0.5e-9, False),
        (0.0, 2e-9, True),
        (1e12, 500.0, False),
        (1e12, 2000.0, True),
    ],
)
def test_overrun_below_a_billionth_of_the_limit_is_a_rounding_error(
    limit: float, overrun: float, is_over: bool
) -> None:
    before = FamilyBudget(limits={"usd": limit})
    after = FamilyBudget(limits={"usd": limit}, granted={"usd": limit + overrun})
    assert budget_math.over_limit(before, after) == (["usd"] if is_over else [])


def test_payment_that_takes_nothing_from_an_overrun_account_is_not_over() -> None:
    overrun = FamilyBudget(limits={"usd": 1.0}, granted={"usd": 2.0})
    assert budget_math.over_limit(overrun, overrun) == []


def test_payment_draws_an_eighth_of_what_is_free_or_what_it_needs() -> None:
    account = FamilyBudget(limits={"usd": 20.0}, granted={"usd": 4.0})
    drawn, purse = budget_math.pay(account, Reservation({"usd": 1.0}, {"usd": 1.0}), {"usd": 0.5})
    assert (drawn.granted, purse.granted) == ({"usd": 6.0}, {"usd": 3.0})
    drawn, purse = budget_math.pay(account, Reservation({"usd": 1.0}, {"usd": 1.0}), {"usd": 3.0})
    assert (drawn.granted, purse.granted) == ({"usd": 7.0}, {"usd": 4.0})
    drawn, purse = budget_math.pay(account, Reservation({"usd": 1.0}, {"usd": 0.5}), {"usd": 0.5})
    assert (drawn.granted, purse.granted) == ({"usd": 4.0}, {"usd": 1.0})  # exactly what it holds


def test_what_is_left_is_never_negative() -> None:
    account = FamilyBudget(limits={"usd": 2.0, "tokens": 5.0, "pages": 1.0})
    left = budget_math.remaining(account, {"usd": 0.5, "pages": 3.0})
    assert left == {"usd": 1.5, "tokens": 5.0, "pages": 0.0}


def test_soft_limit_is_reported_when_reached_and_again_when_changed() -> None:
    account = FamilyBudget(soft={"usd": 2.0, "tokens": 0.0})
    assert budget_math.to_warn(account, {"usd": 1.9}) == {"tokens": 0.0}
    assert budget_math.to_warn(account, {"usd": 2.0}) == {"usd": 2.0, "tokens": 0.0}
    told = FamilyBudget(soft={"usd": 2.0}, warned={"usd": 2.0})
    assert budget_math.to_warn(told, {"usd": 3.0}) == {}
    raised = FamilyBudget(soft={"usd": 2.5}, warned={"usd": 2.0})
    assert budget_math.to_warn(raised, {"usd": 3.0}) == {"usd": 2.5}
