"""Prepared stores of the crash tests: built once in each xdist worker, copied for each test."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import pytest
from tests.crash import session_verbs, store_verbs, swarming
from tests.fixtures.prepared import Prepared


@pytest.fixture(scope="session")
def workspaces(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Prepared]:
    """Return the prepared workspace of an engine."""

    @cache
    def of(engine: str) -> Prepared:
        place = tmp_path_factory.mktemp(f"workspace-{engine}")
        return Prepared(place, partial(store_verbs.prepare, engine=engine))

    return of


@pytest.fixture(scope="session")
def session_store(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """A store with the session that the verbs of `session_verbs` work on."""
    return Prepared(tmp_path_factory.mktemp("session"), session_verbs.prepare)


@pytest.fixture(scope="session")
def swarm_store(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """A store with the session that starts swarms."""
    return Prepared(tmp_path_factory.mktemp("swarm"), swarming.prepare)
