"""The error table is a contract with HTTP clients and shell scripts."""

from __future__ import annotations

from importlib import import_module

import pytest

import ortet
from ortet import errors


@pytest.mark.parametrize(
    ("cls", "status", "exit_code"),
    [
        (errors.NotFound, 404, 4),
        (errors.Conflict, 409, 5),
        (errors.Invalid, 422, 2),
        (errors.Refused, 403, 6),
        (errors.Unavailable, 503, 7),
        (errors.Corrupt, 500, 8),
        (errors.Unsupported, 501, 9),
        (errors.Diverged, 409, 5),
        (errors.Unsettled, 409, 5),
        (errors.RecordedFailure, 409, 5),
    ],
)
def test_each_class_has_one_status_and_exit_code(
    cls: type[errors.OrtetError], status: int, exit_code: int
) -> None:
    assert errors.code_of(cls("a_kind", "do this next")) == (status, exit_code)


def test_every_class_is_in_the_table() -> None:
    def below(cls: type[errors.OrtetError]) -> list[type[errors.OrtetError]]:
        return [cls, *(found for sub in cls.__subclasses__() for found in below(sub))]

    import_module("ortet.journal.replay.cursor")
    for cls in below(errors.OrtetError)[1:]:
        if cls.__module__.startswith(
            (
                "ortet.cli.",
                "ortet.server.",
                "ortet.web.",
                "ortet.mcp_server.",
                "ortet.integrations.",
                "ortet.memory.lexical.index_file",
                "tests.",
            )
        ):
            continue  # told or caught where they are raised; loaded only where a test before did so
        assert errors.code_of(cls("k", "m")).exit_code != 1, cls
        assert getattr(ortet, cls.__name__) is cls


def test_an_exception_of_another_class_is_reported_as_a_bug() -> None:
    assert errors.code_of(ValueError("x")) == (500, 1)


def test_an_error_has_the_same_dict_shape_on_every_surface() -> None:
    error = errors.Conflict("head_moved", "look again", name="main")
    assert error.as_dict() == {
        "error": "conflict",
        "kind": "head_moved",
        "message": "look again",
        "details": {"name": "main"},
    }
    assert str(error) == "look again"


def test_diverged_and_unsettled_are_conflicts() -> None:
    assert issubclass(errors.Diverged, errors.Conflict)
    assert issubclass(errors.Unsettled, errors.Conflict)
    assert all(issubclass(cls, errors.OrtetError) for cls in errors.CODES)
