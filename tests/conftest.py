"""Rules for all tests."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings
from tests.cloud_servers import Cloud, azure_server, google_server, in_front
from tests.s3_server import Proxy, make_bucket, s3_server, set_environ

# how fast the host is says nothing about what is tested
settings.register_profile("ortet", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ortet")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under CI an engine or a server that is missing fails: it is never a skip."""
    report = yield
    if report.skipped and os.environ.get("CI") == "true" and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped under CI: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a real S3 server is, with a bucket named ortet: each test takes its own prefix."""
    with s3_server(tmp_path_factory.mktemp("s3")) as address:
        make_bucket(address, "ortet")
        yield address


@pytest.fixture
def proxy(s3: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """In front of that server, to be told how to fail."""
    set_environ(monkeypatch)
    with Proxy(s3) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where an account of Azure is, with a container named ortet."""
    with azure_server(tmp_path_factory.mktemp("azure")) as address:
        yield address


@pytest.fixture(scope="session")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where Google's storage is, with a bucket named ortet."""
    with google_server(tmp_path_factory.mktemp("google")) as address:
        yield address


@pytest.fixture(params=["az", "gs"])
def cloud(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """In front of each of them."""
    address = request.getfixturevalue({"az": "azure", "gs": "google"}[request.param])
    with in_front(request.param, address, monkeypatch) as cloud:
        yield cloud
