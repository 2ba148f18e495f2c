"""The benchmark itself: all parts but that of files run, small, and keep what they did not measure;
the dialogues of the memory part are as they say, and its measures are right."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(900)  # more than `run` allows: a slow host is no hang
BENCH = Path(__file__).resolve().parent.parent / "bench" / "run.py"
ROWS = BENCH.with_name("live_rows.py")
SETS = ("choose", "look", "final")
OTHER = "<!-- part: files -->\n\n## Files and machines\n\nas it was\n"


def run(tmp_path: Path, *words: str, peers: bool = False) -> subprocess.CompletedProcess[str]:
    words = words if peers else ("--no-peers", *words)
    return subprocess.run(
        [sys.executable, str(BENCH), "--quick", *words],
        env={**os.environ, "ORTET_BENCH_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.slow
def test_the_session_part_runs_without_peers(tmp_path: Path) -> None:
    output = tmp_path / "RESULTS.md"
    output.write_text(f"# Results\n\n{OTHER}")
    done = run(tmp_path, "--part", "session", "--output", str(output))
    assert done.returncode == 0, done.stderr
    text = output.read_text()
    assert OTHER in text
    assert text.count("<!-- part: session -->") == 1
    for row in ("durable append", "group commit", "after a trim", "fork(1000)", "recorded step"):
        assert row in text
    assert list((tmp_path / "cache").iterdir()) == []


def test_bench_only_runs_the_selected_row(tmp_path: Path) -> None:
    done = run(tmp_path, "--only", "group")
    assert done.returncode == 0, done.stderr
    assert "group commit" in done.stdout
    assert "recorded step" not in done.stdout
    assert "part: files" not in done.stdout


@pytest.mark.slow
@pytest.mark.criu
def test_the_live_part_runs_beside_raw_criu(tmp_path: Path) -> None:
    done = run(tmp_path, "--part", "live", peers=True)
    assert done.returncode == 0, done.stderr
    for row in live_titles():
        assert row in done.stdout
    assert done.stdout.count("| raw CRIU |") == 6
    assert list((tmp_path / "cache").iterdir()) == []


def live_titles() -> list[str]:
    return re.findall(r'^ +Row\(\s*"live-[^"]+",\s*"([^"]+)"', ROWS.read_text(), re.MULTILINE)


@pytest.mark.slow
def test_the_memory_part_runs_without_peers(tmp_path: Path) -> None:
    output = tmp_path / "RESULTS.md"
    output.write_text(f"# Results\n\n{OTHER}")
    done = run(tmp_path, "--part", "memory", "--output", str(output))
    assert done.returncode == 0, done.stderr
    text = output.read_text()
    assert OTHER in text
    for row in ("by text, 100 000", "pruned", "new process", "resident", "learn a fact", "fork of"):
        assert row in text
    for title in ("recall@5, %", "recall@10, %", "recall@20, %", "MRR, %", "nDCG@10, %"):
        assert f"### {title}" in text
    assert "| ortet, text |" in text
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.slow
def test_the_serve_part_writes_its_rows_and_keeps_others(tmp_path: Path) -> None:
    output = tmp_path / "RESULTS.md"
    output.write_text(f"# Results\n\n{OTHER}")
    done = run(tmp_path, "--part", "serve", "--output", str(output), peers=True)
    assert done.returncode == 0, done.stderr
    text = output.read_text()
    assert OTHER in text
    for row in (
        "HTTP adds",
        "/healthz",
        "Starlette alone",
        "first paint",
        "longest task",
        "answers `initialize`",
    ):
        assert row in text
    for verb in ("say", "commit", "fork, mind only", "recall"):
        assert text.count(f"\n| {verb} | ") == 4  # three numbers of clients, and those with pauses
    assert "| say, all to one session | " in text
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.slow
def test_the_adapters_part_runs_without_peers(tmp_path: Path) -> None:
    output = tmp_path / "RESULTS.md"
    output.write_text(f"# Results\n\n{OTHER}")
    done = run(tmp_path, "--part", "adapters", "--output", str(output))
    assert done.returncode == 0, done.stderr
    text = output.read_text()
    assert OTHER in text
    for row in ("behind 100 turns", "behind 2000 turns", "latest checkpoint", "from the middle"):
        assert row in text
    for peer in ("InMemorySaver", "InMemoryStore"):  # which are part of LangGraph
        assert f"| LangGraph {peer} |" in text
    assert "OpenAI Agents" in text
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.slow
def test_the_scale_part_runs_without_peers(tmp_path: Path, module: Any) -> None:
    output = tmp_path / "RESULTS.md"
    output.write_text(f"# Results\n\n{OTHER}")
    done = run(tmp_path, "--part", "scale", "--output", str(output))
    assert done.returncode == 0, done.stderr
    text = output.read_text()
    assert OTHER in text
    for row in module("scale_rows").ROWS:
        assert f"| {row.title} |" in text
    assert "| bare insert |" in text
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the benchmark by its name."""
    monkeypatch.syspath_prepend(str(BENCH.parent))
    return import_module


def test_recall_reciprocal_rank_and_ndcg_are_computed_correctly(module: Any) -> None:
    metrics = module("memory_metrics")
    assert metrics.recall([3, 1, 2], [1, 9], 1) == 0
    assert metrics.recall([3, 1, 2], [1, 9], 2) == 0.5
    assert metrics.reciprocal_rank([3, 1, 9], [1, 9]) == 0.5
    assert metrics.reciprocal_rank([3], [1]) == 0
    assert metrics.ndcg([1, 9, 3], [9, 1], 10) == 1
    assert metrics.ndcg([3, 1], [1], 10) == pytest.approx(0.6309, abs=1e-4)
    assert metrics.ndcg([3, 4, 1], [1], 2) == 0


def test_an_id_named_twice_takes_one_place(module: Any) -> None:
    metrics = module("memory_metrics")
    assert metrics.of([7, 7, 1], [1]).mrr == 0.5
    with pytest.raises(ValueError, match="nothing"):
        metrics.mean([])


def test_metrics_are_averaged_by_kind(module: Any) -> None:
    metrics = module("memory_metrics")
    good, bad = metrics.of([1], [1]), metrics.of([2], [1])
    found = metrics.by_kind([("single", good), ("time", bad), ("single", bad)])
    assert list(found) == ["single", "time", "all"]
    assert found["single"].recall10 == 0.5
    assert found["all"].mrr == pytest.approx(1 / 3)


@pytest.mark.parametrize("part", SETS)
def test_dialogues_are_the_same_every_time_and_of_all_kinds(module: Any, part: str) -> None:
    talk, facts = module("memory_talk"), module("memory_facts")
    many = talk.dialogues(part, 6)
    assert many == talk.dialogues(part, 6)
    asked = [question for one in many for question in one.questions]
    assert {question.kind for question in asked} == set(facts.KINDS)
    for one in many:
        assert len(one.turns) > 200
        assert [turn.id for turn in one.turns] == list(range(len(one.turns)))
        assert [turn.time for turn in one.turns] == sorted(turn.time for turn in one.turns)
        texts = [turn.text for turn in one.turns]
        for question in one.questions:
            assert "{" not in question.text
            assert question.evidence
            assert len(set(question.evidence)) == len(question.evidence)
            for place in question.evidence:  # it can be told from every other turn
                assert texts.count(texts[place]) == 1
        assert not any("{" in text for text in texts)


def test_the_sets_ask_about_other_topics(module: Any) -> None:
    talk = module("memory_talk")
    asked = [{q.text for one in talk.dialogues(part, 4) for q in one.questions} for part in SETS]
    for one, other in combinations(asked, 2):
        assert not one & other


def test_reworded_questions_share_hardly_a_word_with_the_evidence(module: Any) -> None:
    talk, facts = module("memory_talk"), module("memory_facts")
    shared = []
    for one in talk.dialogues("choose", 6):
        for question in one.questions:
            if question.kind == "paraphrase":
                name, _, said = one.turns[question.evidence[0]].text.partition(": ")
                words = facts.words(question.text) - facts.words(name)
                shared.append(len(words & facts.words(said or name)))
    assert sum(shared) / len(shared) < 1


@pytest.mark.slow
def test_a_haystack_is_as_long_as_asked_and_holds_the_evidence(module: Any) -> None:
    found = module("memory_talk").haystack(3000)
    assert len(found.turns) == 3000
    assert found.questions
    for question in found.questions:
        names = {found.turns[place].text.partition(":")[0] for place in question.evidence}
        assert any(name in question.text for name in names)


def test_equal_texts_are_matched_one_after_the_other(module: Any) -> None:
    numbers = module("memory_text").Numbers()
    numbers.add(["a", "b"])
    numbers.add(["a"])
    assert numbers.matched(["b", "a", "a", "a", "c"]) == [1, 0, 2]
    assert numbers.matched(["a"]) == [0]


def mutation_subjects() -> list[tuple[str, list[str]]]:
    """Return module and tests of each subject. Its program needs a package of its own."""
    tree = ast.parse(BENCH.with_name("mutation.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    subjects = [call.args for call in calls if ast.unparse(call.func) == "Subject"]
    return [(ast.literal_eval(args[1]), ast.literal_eval(args[2]).split()) for args in subjects]


def test_every_module_and_test_of_the_mutation_run_exists() -> None:
    subjects = mutation_subjects()
    tree = BENCH.parent.parent
    assert subjects
    for module, tests in subjects:
        assert (tree / "src" / "ortet" / module).is_file(), module
        assert [test for test in tests if not (tree / "tests" / test).is_file()] == [], module


def test_the_table_of_the_mutation_run_names_each_module_once() -> None:
    page = BENCH.parent.parent.joinpath("docs", "testing.md").read_text()
    rows = re.findall(r"^\| \w+ \| `([\w/.]+\.py)`", page, re.MULTILINE)
    assert sorted(rows) == sorted(module for module, _ in mutation_subjects())
