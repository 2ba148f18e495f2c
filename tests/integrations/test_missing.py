"""An adapter whose framework is not installed says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

_WITHOUT = """
import sys
class Nobody:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1] or name.startswith(sys.argv[1] + "."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Nobody())
from ortet.errors import Unsupported
try:
    exec(f"from {sys.argv[2]} import *")
except Unsupported as error:
    print(error.kind, error)
"""


@pytest.mark.parametrize(
    ("package", "module", "extra"),
    [
        ("google.adk", "ortet.integrations.adk", "ortet[adk]"),
        ("claude_agent_sdk", "ortet.integrations.claude", "ortet[claude]"),
        ("langgraph", "ortet.integrations.langgraph", "ortet[langgraph]"),
        ("agents", "ortet.integrations.openai_agents", "ortet[openai-agents]"),
        ("pydantic_ai", "ortet.integrations.pydantic_ai", "ortet[pydantic-ai]"),
        ("agent_framework", "ortet.integrations.agent_framework", "ortet[agent-framework]"),
    ],
)
def test_a_missing_framework_is_named(package: str, module: str, extra: str) -> None:
    command = [sys.executable, "-c", _WITHOUT, package, module]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert told.startswith("extra_missing")
    assert f"pip install '{extra}'" in told.replace('"', "'")
