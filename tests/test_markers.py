"""Markers follow from what a test asks for: none can be forgotten, and none is set by habit."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from tests.fixtures import markers, services
from tests.fixtures.postgres import Server
from tests.fixtures.valkey import Server as Valkey

TESTS = Path(__file__).parent


def defined_fixtures() -> set[str]:
    """Return the names of all fixtures that are defined below tests/."""
    found = set()
    for path in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(
                "fixture" in ast.unparse(decorator) for decorator in node.decorator_list
            ):
                found.add(node.name)
    return found


def test_every_fixture_that_marks_exists() -> None:
    assert set(markers.FIXTURES) <= defined_fixtures()
    assert set(markers.FIXTURES.values()) <= set(markers.MARKERS)


def test_every_place_of_the_quick_run_exists() -> None:
    places = [*markers.QUICK, *markers.NOT_QUICK]
    assert [place for place in places if not (TESTS.parent / place).exists()] == []


def test_every_folder_that_marks_exists() -> None:
    assert [name for name in markers.FOLDERS if not (TESTS.parent / name).is_dir()] == []
    assert set(markers.FOLDERS.values()) <= set(markers.MARKERS)


def test_every_collected_test_has_the_markers_of_what_it_uses(
    request: pytest.FixtureRequest,
) -> None:
    """With the whole suite collected, this looks at all tests; with one file, at those of it."""
    wrong = {
        item.nodeid: missing
        for item in request.session.items
        if (missing := markers.needs_of(item) - {mark.name for mark in item.iter_markers()})
    }
    assert wrong == {}


@pytest.mark.parametrize("name", sorted(services.SERVICES))
def test_a_server_of_the_run_is_refused_to_an_unmarked_test(name: str) -> None:
    with pytest.raises(pytest.fail.Exception, match="is not marked so"):
        services.address(name)


def test_a_server_of_its_own_is_refused_to_an_unmarked_test() -> None:
    with pytest.raises(pytest.fail.Exception, match="needs postgres"):
        Server()
    with pytest.raises(pytest.fail.Exception, match="needs valkey"):
        Valkey().start()


def test_no_test_skips_itself_for_want_of_root() -> None:
    """The marker does it, so that `-m "not root"` leaves nothing to be skipped."""
    pattern = re.compile(r"skip(if)?\([^)]*(privileged\(\)|geteuid\(\))")
    found = [str(path) for path in TESTS.rglob("*.py") if pattern.search(path.read_text())]
    assert found == []


def test_every_marker_is_documented() -> None:
    text = (TESTS.parent / "docs/testing.md").read_text()
    assert [name for name in markers.MARKERS if f"`{name}`" not in text] == []
