"""What an action says of itself: its name, its key, and its arguments and result as plain data."""

from __future__ import annotations

import functools
from typing import Any

import pytest

import ortet
from ortet._util.codec import encode
from ortet.errors import Invalid
from ortet.sessions.actions.actions import (
    Action,
    CallOptions,
    arguments,
    check_action,
    describe,
    digest,
    is_async,
    is_opaque,
    plain,
    printed,
)

LARGEST = 256 * 1024


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def mail(to: str, copy: str = "bob") -> None: ...


def described(function: Any, *args: Any, **options: Any) -> Action:
    return describe(function, args, {}, CallOptions(**options))


class TestMark:
    def test_function_marked_without_a_name_has_its_own(self) -> None:
        def pay() -> int:
            return 5

        assert ortet.action(pay) is pay
        assert described(pay) == Action("pay", "recorded", "", "family", "outside")
        assert ortet.action(replay="once", key="k")(pay)() == 5
        assert described(pay) == Action("pay", "once", "k", "family", "outside")

    def test_name_given_to_the_mark_is_used(self) -> None:
        marked = ortet.action("send", replay="idempotent", key="k", scope="timeline")(mail)
        expected = Action("send", "idempotent", "k", "timeline", "outside")
        assert described(marked, "ann") == expected
        assert described(marked, "ann", name="post", key="x").name == "post"

    def test_name_that_is_neither_text_nor_a_function_is_refused(self) -> None:
        for wrong in (5, None, b"x"):
            with pytest.raises(Invalid):
                ortet.action(wrong)  # type: ignore[call-overload]

    def test_action_cannot_be_changed_in_place(self) -> None:
        with pytest.raises(AttributeError):
            Action("x").name = "y"  # type: ignore[misc]

    def test_idempotent_and_once_actions_need_a_key(self) -> None:
        for plain_replay in ("pure", "recorded"):
            chosen = check_action(Action("x", plain_replay))
            assert chosen == Action("x", plain_replay, "", "family", "outside")
        for keyed_replay in ("idempotent", "once"):
            with pytest.raises(Invalid) as caught:
                check_action(Action("x", keyed_replay))
            assert caught.value.kind == "no_key"
            assert check_action(Action("x", keyed_replay, ortet.by_arguments)).key

    def test_effect_in_the_workspace_belongs_to_the_timeline(self) -> None:
        here = check_action(Action("x"), "workspace")
        assert (here.where, here.scope) == ("workspace", "timeline")
        for outside in (Action("x", scope="family"), Action("x", "once", "k")):
            assert check_action(outside, "workspace").where == "outside"
        with pytest.raises(Invalid):
            check_action(Action("x", scope="family", where="workspace"))

    @pytest.mark.parametrize("wrong", [ValueError("x"), (int,), "ValueError", None])
    def test_safe_errors_that_are_no_exception_classes_are_refused(self, wrong: Any) -> None:
        with pytest.raises(Invalid, match="exception classes"):
            ortet.action(safe_errors=wrong)
        assert described(ortet.action(safe_errors=(OSError,))(mail), "a").safe_errors == (OSError,)

    def test_partial_functions_have_the_name_of_what_they_call(self) -> None:
        async def later() -> None: ...

        assert described(functools.partial(functools.partial(mail, "ann"), "cid")).name == "mail"
        assert is_async(functools.partial(functools.partial(later)))
        assert not is_async(functools.partial(mail))


class TestKey:
    def filled(self, key: str, *args: Any, **kwargs: Any) -> str:
        def send(to: Any, copy: str = "bob") -> None: ...

        return str(describe(ortet.action(key=key)(send), args, kwargs, CallOptions()).key)

    def test_key_is_filled_from_arguments_and_defaults(self) -> None:
        assert self.filled("mail-{to}-{copy}", "ann") == "mail-ann-bob"
        assert self.filled("mail-{to}-{copy}", to="ann", copy="cid") == "mail-ann-cid"
        assert self.filled("mail", "ann") == "mail"
        assert self.filled("}", "ann") == "}"

    @pytest.mark.parametrize(
        ("key", "args"),
        [
            ("{to}", ()),  # TypeError: an argument is missing
            ("{to", ("ann",)),  # ValueError: no closing bracket
            ("{who}", ("ann",)),  # KeyError: no such parameter
            ("{to[3]}", ([],)),  # IndexError
            ("{to.name}", ("ann",)),  # AttributeError
        ],
    )
    def test_key_that_cannot_be_filled_is_refused(self, key: str, args: tuple[Any, ...]) -> None:
        with pytest.raises(Invalid) as caught:
            self.filled(key, *args)
        assert caught.value.kind == "bad_key"


class TestPlain:
    def test_value_up_to_256_kibibytes_is_stored_as_it_is(self) -> None:
        extra = len(encode("x" * LARGEST)) - LARGEST
        fits = "x" * (LARGEST - extra)
        assert len(encode(fits)) == LARGEST
        assert plain(fits) == fits
        assert is_opaque(plain(fits + "x"))
        assert is_opaque(plain(fits + "xx"))

    def test_keys_that_are_numbers_become_text(self) -> None:
        assert plain({1: "a"}) == {"1": "a"}
        assert arguments((1, {2: 3}), {"k": [4]}) == {"args": [1, {"2": 3}], "kwargs": {"k": [4]}}

    def test_value_that_is_no_data_is_stored_as_what_it_prints(self) -> None:
        assert plain(mail) == {
            "opaque": "<function mail>"
        }  # no address: it differs in each process
        assert plain({"b", "a", "c"}) == ["a", "b", "c"]
        assert printed(["x" * 5000]) == ("['" + "x" * 5000)[:2000]
        assert printed(Unprintable()) == "<Unprintable that cannot be printed>"
        assert plain(Unprintable()) == {"opaque": "<Unprintable that cannot be printed>"}

    def test_only_a_record_with_nothing_but_the_mark_is_opaque(self) -> None:
        assert is_opaque({"opaque": "x"})
        for value in ({}, {"opaque": "x", "more": 1}, {"other": 1}, ["opaque"], "opaque", None):
            assert not is_opaque(value)

    def test_digest_is_32_hex_digits_of_name_and_arguments(self) -> None:
        found = digest(lambda data: data.hex().encode(), "n", {"args": [1]})
        assert found == encode(["n", {"args": [1]}]).hex().encode().hex()[:32]
        assert len(found) == 32
