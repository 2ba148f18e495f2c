"""Modules of machines/standalone run as scripts: only the standard library is there for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ortet.machines import standalone

FOLDER = Path(standalone.__file__).parent
NAMES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")

IMPORT = """
import importlib, sys
sys.path.append(sys.argv[1])
for name in ("ipc", "kernel_cell", "kernel_variables"):  # a kernel gets these modules as text
    sys.modules["_ortet_" + name] = importlib.import_module(name)
importlib.import_module(sys.argv[2])
print([name for name in sys.modules if name.partition(".")[0] == "ortet"])
"""


@pytest.mark.parametrize("name", NAMES)
def test_a_standalone_module_loads_without_site_packages_and_without_ortet(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", IMPORT, str(FOLDER), name],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"
