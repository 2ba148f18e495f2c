"""The models in specs/ hold for the protocol as built, and show what each part of it is for."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
INVARIANTS = {"lease": "safe", "sweep": "nothing_is_lost"}

FAILING_RUNS = {
    "lease_without_fence_check": "0x1af2daef9829b5",
    "lease_with_one_fence": "0x8b7bdcb126c05",
    "sweep_without_epoch": "0xeeb95b71727f7",
    "sweep_without_second_look": "0x139730c8fa3267",
    "sweep_without_marks": "0x1a06f2a328767f",
    "sweep_with_stale_listing": "0x1520c936c96901",
}
"""Weakened protocol -> seed of a run that breaks its invariant. `scripts/models` finds others."""


@pytest.fixture(scope="session")
def quint() -> str:
    """The program of the model checker, installed by scripts/test-tools."""
    script = [ROOT / "scripts" / "quint"]
    return subprocess.run(script, check=True, capture_output=True, text=True).stdout.strip()


def simulate(quint: str, variant: str, *options: str) -> str:
    name = variant.partition("_")[0]
    done = subprocess.run(
        [
            *(quint, "run", ROOT / "specs" / f"{name}.qnt", "--backend=typescript"),
            *(f"--main={variant}", f"--invariant={INVARIANTS[name]}", "--max-steps=45", *options),
        ],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("model", "witness"), [("lease", "two_holders_wrote"), ("sweep", "swept_beside_writer")]
)
def test_the_protocol_as_built_keeps_its_invariants(quint: str, model: str, witness: str) -> None:
    options = ("--max-samples=50", "--seed=0x1", "--witnesses", witness)
    output = simulate(quint, f"{model}_as_built", *options)
    assert "No violation found" in output
    seen = re.search(rf"{witness} was witnessed in (\d+) trace", output)
    assert seen is not None and int(seen[1]) > 0  # else the runs would prove nothing


@pytest.mark.parametrize("variant", FAILING_RUNS)
def test_a_weakened_protocol_breaks_its_invariant(quint: str, variant: str) -> None:
    output = simulate(quint, variant, f"--seed={FAILING_RUNS[variant]}", "--max-samples=1")
    assert "Invariant violated" in output


def test_each_variant_of_a_model_is_tested() -> None:
    texts = "\n".join(file.read_text() for file in sorted((ROOT / "specs").glob("*.qnt")))
    variants = set(re.findall(r"^module ((?:lease|sweep)_\w+) \{", texts, re.MULTILINE))
    assert variants == {*FAILING_RUNS, "lease_as_built", "sweep_as_built"}
