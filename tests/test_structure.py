"""The parts of the source tree stay small: cycles, inheritance, folders, modules, docstrings."""

from __future__ import annotations

from bench import structure

OPEN_CYCLES = (
    "ortet.cli.",
    "ortet.journal.state.",
    "ortet.server.streaming.",
    "ortet.sessions.",
)
"""Packages whose import cycles are being removed. An entry goes when its cycle is gone."""

OPEN_INHERITANCE = {
    "CliCall": "cli: to be composed",
    "DaemonCall": "cli: to be composed",
    "McpContext": "mcp_server: to be composed",
    "CompactableConversation": "integrations/openai_agents: to be composed",
    "OrtetCompactingSession": "integrations/openai_agents: to be composed",
    "OrtetSession": "integrations/openai_agents: to be composed",
    "TurnTrackingConversation": "integrations/openai_agents: to be composed",
    "ReplayBudget": "sessions: to be composed",
    "ReplayEffects": "sessions: to be composed",
    "ReplaySession": "sessions: to be composed",
    "ReplayWriter": "sessions: to be composed",
    "Session": "sessions: to be composed",
    "SessionReader": "sessions: to be composed",
    "RemoteObjectStore": "objects: shares the read path of the local store, which is hot",
}
"""Class -> why it may still inherit from a concrete class. Never add a name."""

OPEN_SMALL_MODULES = {
    "server/operations/secrets.py",
}
"""Modules that are to be merged, or to say in their docstring why they are modules of their own."""

OPEN_FOLDERS = {"cli"}
"""Folders that are to be split."""


def test_no_modules_import_each_other_in_a_cycle() -> None:
    """Type-only imports and imports in functions count."""
    assert [
        cycle
        for cycle in structure.import_cycles()
        if not all(module.startswith(OPEN_CYCLES) for module in cycle)
    ] == []


def test_no_class_inherits_from_a_concrete_class() -> None:
    """Records, exceptions and the suites in `testing` may."""
    assert {
        full: bases
        for full in structure.CLASSES
        if not full.startswith("ortet.testing.")
        and full.rpartition(".")[2] not in OPEN_INHERITANCE
        and (bases := structure.concrete_bases(full))
    } == {}


def test_a_chain_of_classes_has_at_most_a_contract_and_its_implementation() -> None:
    assert {
        full: depth
        for full in structure.CLASSES
        if full.rpartition(".")[2] not in OPEN_INHERITANCE and (depth := structure.depth(full)) > 2
    } == {}


def test_a_folder_holds_at_most_16_modules() -> None:
    assert set(structure.large_folders()) <= OPEN_FOLDERS


def test_a_small_module_says_why_it_is_a_module_of_its_own() -> None:
    assert set(structure.small_modules()) <= OPEN_SMALL_MODULES


def test_a_package_says_in_10_to_30_lines_what_it_is_for() -> None:
    assert {
        name: lines
        for name, lines in structure.package_docstrings().items()
        if not 10 <= lines <= 30
    } == {}
