"""A store with one of everything that pages show, and a server on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.fixtures.http_server import Server
from tests.web.sample import Sample, make_sample


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """A store for all tests; a test that changes something makes a session of its own."""
    return make_sample(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="session")
def server(sample: Sample) -> Iterator[Server]:
    """A server on the sample for all tests, without tokens."""
    started = Server(sample.store.parent, "--no-auth")
    try:
        yield started
    finally:
        started.kill()
