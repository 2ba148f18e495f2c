"""The loggers of the library."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ortet._util.log import get_logger

WARN = "from ortet._util.log import get_logger; get_logger('ortet.x').warning('said')"


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    return done.stderr


def test_program_without_logging_prints_nothing() -> None:
    assert run(WARN) == ""


def test_program_that_configures_logging_gets_the_records() -> None:
    configured = f"import logging; logging.basicConfig(level='INFO'); {WARN}"
    assert run(configured) == "WARNING:ortet.x:said\n"


def test_a_command_does_not_import_logging() -> None:
    code = "import sys, ortet.cli.main, ortet.hub.hub, ortet.store.lease, ortet.objects.recovery"
    assert run(f"{code}; sys.exit('logging' in sys.modules)") == ""


def test_logger_has_the_name_of_its_module(caplog: pytest.LogCaptureFixture) -> None:
    get_logger("ortet.objects.recovery").warning("said")
    assert [record.name for record in caplog.records] == ["ortet.objects.recovery"]
