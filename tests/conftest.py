"""Rules for all tests; the fixtures are in tests/fixtures."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = [
    "tests.fixtures.tally",  # before those that import it: pytest rewrites assertions of plugins
    "tests.fixtures.markers",
    "tests.fixtures.order",
    "tests.fixtures.slow",
    "tests.fixtures.services",
    "tests.fixtures.postgres",
    "tests.fixtures.s3",
    "tests.fixtures.clouds",
    "tests.fixtures.valkey",
    "tests.fixtures.stores",
    "tests.fixtures.projects",
    "tests.fixtures.processes",
    "tests.fixtures.commands",
    "tests.fixtures.http_server",
    "tests.fixtures.browser",
]

# how fast the host is says nothing about what is tested
settings.register_profile("ortet", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ortet")


def pytest_configure() -> None:
    """Heed signals although nohup or a background job ignores them: child processes inherit it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under CI an engine or a server that is missing fails: it is never a skip."""
    report = yield
    if report.skipped and os.environ.get("CI") == "true" and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped under CI: {report.longrepr}"
    return report
