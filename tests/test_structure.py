"""The parts of the source tree stay small: cycles, inheritance, folders, modules, docstrings."""

from __future__ import annotations

from bench import structure

INHERITANCE = {
    "Session": "a session that can be written can be read: one level",
}
"""Class -> why it inherits from a concrete class. Never add a name."""


def test_no_modules_import_each_other_in_a_cycle() -> None:
    """Type-only imports and imports in functions count."""
    assert structure.import_cycles() == []


def test_no_class_inherits_from_a_concrete_class() -> None:
    """Records, exceptions and the suites in `testing` may."""
    assert {
        full: bases
        for full in structure.CLASSES
        if not full.startswith("ortet.testing.")
        and full.rpartition(".")[2] not in INHERITANCE
        and (bases := structure.concrete_bases(full))
    } == {}


def test_a_chain_of_classes_has_at_most_a_contract_and_its_implementation() -> None:
    assert {
        full: depth
        for full in structure.CLASSES
        if full.rpartition(".")[2] not in INHERITANCE and (depth := structure.depth(full)) > 2
    } == {}


def test_the_reasons_name_only_classes_that_still_inherit() -> None:
    names = {
        full.rpartition(".")[2] for full in structure.CLASSES if structure.concrete_bases(full)
    }
    assert INHERITANCE.keys() <= names


def test_a_folder_holds_at_most_16_modules() -> None:
    assert structure.large_folders() == []


def test_a_small_module_says_why_it_is_a_module_of_its_own() -> None:
    assert structure.small_modules() == []


def test_a_package_says_in_10_to_30_lines_what_it_is_for() -> None:
    assert {
        name: lines
        for name, lines in structure.package_docstrings().items()
        if not 10 <= lines <= 30
    } == {}
