"""Artifacts and model calls: kept by content, named by events, safe from a sweep."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures import forked

from ortet.config.environment import open_hub
from ortet.errors import Corrupt, Invalid, NotFound, Refused
from ortet.hub.hub import Hub

pytestmark = pytest.mark.files({})

BIG = 300_000


class TestArtifacts:
    @pytest.mark.parametrize(
        ("name", "why"),
        [("a\0b", r"it has '\\x00' in it"), ("a\nb", "in it"), ("", "0 ch"), ("x" * 1001, "1001")],
    )
    def test_bad_artifact_name_is_refused_with_the_reason(
        self, hub: Hub, name: str, why: str
    ) -> None:
        with hub.session("s") as s, pytest.raises(Invalid, match=why) as found:
            s.artifact(name, data=b"x")
        assert found.value.kind == "bad_name"

    def test_artifact_versions_are_numbered_per_name_and_all_stay_readable(
        self, store: Path
    ) -> None:
        big = os.urandom(BIG)
        with open_hub(store) as hub, hub.session("s") as s:
            first = s.artifact("report.md", kind="report", data="# one")
            assert (first.version, first.media, first.kind) == (1, "text/markdown", "report")
            s.artifact("report.md", data=b"# two")
            s.artifact("blob", data=big)
            s.artifact("empty", data=b"")
            for number in range(9):
                s.artifact("many", data=str(number))
            s.commit("made")
            s.artifact("report.md", data="# three", media="text/x-own")
        with open_hub(store) as hub, hub.session("s") as s:
            assert s.artifact_store.artifact_data("report.md") == b"# three"
            assert s.artifact_store.artifact_data("report.md", 1) == b"# one"
            assert s.artifact_store.artifact_data("report.md", version=2) == b"# two"
            assert s.artifact_store.artifact_data("blob") == big
            assert s.artifact_store.artifact_data("empty") == b""
            assert s.artifact_store.artifact_data("many", 9) == b"8"
            assert s.artifact("many", data="x").version == 10
            found = {(a.name, a.version): a for a in s.artifacts()}
            assert len(found) == 15
            assert found["report.md", 3].media == "text/x-own"
            assert found["blob", 1].media == "application/octet-stream"
            assert s.artifact_store.orphans().missing == []
            hub.verify()

    def test_lineage_names_the_action_and_reason_of_an_artifact(self, hub: Hub) -> None:
        with hub.session("s") as s:

            def draw() -> None:
                s.artifact("chart.png", data=b"png")
                s.artifact("table.csv", data="a,b", why="for the appendix")

            s.act(draw, why="they asked for a picture")
            s.artifact("loose.txt", data="x")
            chart, table, loose = (
                s.artifact_store.lineage(name) for name in ("chart.png", "table.csv", "loose.txt")
            )
            assert chart.action is not None
            assert (chart.action.name, chart.why) == ("draw", "they asked for a picture")
            assert (table.action, table.why) == (chart.action, "for the appendix")
            assert (loose.action, loose.why) == (None, "")
            assert chart.artifact.media == "image/png"

    def test_a_link_has_no_content(self, hub: Hub) -> None:
        with hub.session("s") as s:
            made = s.artifact("review", link="https://example.org/pr/1", kind="pull request")
            assert (made.oid, made.size) == ("", 0)
            with pytest.raises(NotFound, match=r"example\.org"):
                s.artifact_store.artifact_data("review")
            assert s.artifact_store.orphans().missing == []

    def test_artifact_from_a_workspace_file_must_lie_inside_the_workspace(
        self, hub: Hub, work: Path, tmp_path: Path
    ) -> None:
        (work / "before.txt").write_text("was here")
        with hub.session("s", workspace=work) as s:
            s.commit("first")
            (work / "out").mkdir()
            (work / "out/report.md").write_text("# done")
            (work / "stray.tmp").write_text("?")
            assert s.artifact("out/report.md").name == "out/report.md"
            assert s.artifact(work / "out" / "report.md").version == 2
            assert s.artifact_store.artifact_data("out/report.md") == b"# done"
            assert s.artifact_store.orphans().files == ["stray.tmp"]
            s.commit("second")
            assert s.artifact_store.orphans().files == ["stray.tmp"]
            (tmp_path / "secret").write_text("s")
            (work / "way-out").symlink_to(tmp_path / "secret")
            for outside in ("../secret", tmp_path / "secret", "way-out"):
                with pytest.raises(Invalid) as caught:
                    s.artifact(outside)
                assert caught.value.kind == "outside_workspace"

    def test_artifact_from_a_path_without_a_workspace_must_be_a_regular_file(
        self, hub: Hub, work: Path
    ) -> None:
        (work / "a.txt").write_text("a")
        os.mkfifo(work / "pipe")
        with hub.session("s") as s:
            assert s.artifact(work / "a.txt").name == "a.txt"
            assert s.artifact_store.orphans().files == []
            before = len(list(s.events()))
            for wrong, kind in ((work / "no", "no_file"), (work, "not_a_file")):
                with pytest.raises((NotFound, Invalid)) as caught:
                    s.artifact(wrong)
                assert caught.value.kind == kind
            for name in (work / "pipe", "", "a\0b", "x" * 2000):
                with pytest.raises(Invalid):
                    s.artifact(name)
            with pytest.raises(Invalid):
                s.artifact("x", data={1: 2})  # type: ignore[arg-type]
            assert len(list(s.events())) == before

    def test_reading_an_unknown_artifact_or_version_is_not_found(self, hub: Hub) -> None:
        with hub.session("s") as s:
            s.artifact("a", data="x")
            for args in (("b",), ("a", 2), ("a", 0)):
                with pytest.raises(NotFound) as caught:
                    s.artifact_store.artifact_data(*args)
                assert caught.value.kind == "no_artifact"

    def test_a_restore_brings_versions_back(self, hub: Hub) -> None:
        with hub.session("s") as s:
            s.artifact("a", data="one")
            point = s.commit()
            s.artifact("a", data="two")
            s.restore(point.oid)
            assert s.artifact_store.artifact_data("a") == b"one"
            assert s.artifact("a", data="three").version == 2

    def test_orphans_and_verify_report_lost_artifact_content(self, hub: Hub) -> None:
        with hub.session("s") as s:
            s.artifact("a", data=os.urandom(BIG))
            s.artifact("b", data="x")
        hub.close()
        for path in (hub.root / "local/tails").iterdir():
            path.unlink()
        for path in (hub.root / "bucket/packs").glob("*"):
            path.unlink()
        with open_hub(hub.root) as again:
            with again.session("s") as s:
                assert s.artifact_store.orphans().missing == ["a@1", "b@1"]
            with pytest.raises(Corrupt):
                again.verify()


class TestSweep:
    def sweep(self, hub: Hub) -> None:
        hub.sweep(min_garbage=0.0, expire_ns=0)

    @pytest.mark.parametrize("durability", ["event", "group", "commit"])
    def test_sweep_keeps_artifacts_of_uncommitted_events(
        self, store: Path, durability: Any
    ) -> None:
        data = os.urandom(BIG)
        with open_hub(store) as hub, hub.session("s", durability=durability) as s:
            s.artifact("before", data=b"sealed")
            s.commit("one")
            s.artifact("a", data=data)
            s.accounting.model_call("p", "m", request="ask" * 9, response="answer" * 9)
            (fork,) = s.fork()
            fork.artifact("forked", data=data[::-1])
            self.sweep(hub)
            with open_hub(store) as other:
                self.sweep(other)
        with open_hub(store) as hub:
            self.sweep(hub)
            with hub.session("s") as s, hub.session("s/1") as fork:
                assert s.artifact_store.artifact_data("before") == b"sealed"
                assert s.artifact_store.artifact_data("a") == data
                assert s.accounting.content(s.accounting.model_calls()[0].response) == b"answer" * 9
                assert fork.artifact_store.artifact_data("forked") == data[::-1]
            hub.verify()

    def test_sweep_before_the_first_commit_keeps_artifacts(self, store: Path) -> None:
        with open_hub(store) as hub:
            with hub.session("s") as s:
                s.artifact("a", data=b"x" * BIG)
            self.sweep(hub)
        with open_hub(store) as hub, hub.session("s") as s:
            self.sweep(hub)
            assert s.artifact_store.artifact_data("a") == b"x" * BIG

    def test_a_kill_between_content_and_event_leaves_garbage_only(self, store: Path) -> None:
        code = (
            "import ortet, sys, os\n"
            "s = ortet.open(sys.argv[1]).session('s')\n"
            "s.artifact('a', data=os.urandom(300000))"
        )
        done = forked.run(
            [sys.executable, "-c", code, str(store)],
            env={**os.environ, "ORTET_FAULT": "artifact.stored:kill"},
            check=False,
        )
        assert done.returncode == -signal.SIGKILL
        with open_hub(store) as hub:
            with hub.session("s") as s:
                assert s.artifacts() == []
            assert hub.sweep(min_garbage=0.0).removed > 0
            hub.verify()


class TestModelCalls:
    def test_model_call_is_stored_by_reference_and_counted_as_spent(self, hub: Hub) -> None:
        request = {"messages": [{"role": "user", "content": "hi " * 100_000}]}
        with hub.session("s", budget={"tokens": 1000}) as s:
            event = s.accounting.model_call(
                "anthropic",
                "large",
                {"temperature": 0.5},
                {"input_tokens": 10, "output_tokens": 5, "usd": 0.01, "service_tier": "usual"},
                request=request,
                response="hello",
            )
            assert event.kind == "model"
            assert "messages" not in event.data
            (call,) = s.accounting.model_calls()
            assert (call.provider, call.model, call.params) == (
                "anthropic",
                "large",
                {"temperature": 0.5},
            )
            assert s.accounting.content(call.response) == b"hello"
            assert len(s.accounting.content(call.request)) > 300_000
            assert s.accounting.spent()["tokens"] == 15
            assert s.accounting.budget_left() == {"tokens": 985}
            s.commit("called")
            hub.verify()
        assert [(b.key, b.amounts["usd"]) for b in hub.bill(by="model")] == [("large", 0.01)]

    @pytest.mark.parametrize(
        ("usage", "tokens"),
        [
            ({"tokens": 7, "input_tokens": 1}, 7),
            ({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 9}, 9),
            ({"prompt_tokens": 3, "completion_tokens": 4}, 7),
            ({"calls": 1}, None),
        ],
    )
    def test_tokens_of_each_kind_of_report(
        self, hub: Hub, usage: dict[str, int], tokens: int | None
    ) -> None:
        with hub.session("s") as s:
            s.accounting.model_call("p", "m", usage=usage)
            assert s.accounting.spent().get("tokens") == tokens

    def test_model_call_over_budget_is_recorded_and_pauses_the_session(self, hub: Hub) -> None:
        s = hub.session("s", budget={"usd": 1})
        with pytest.raises(Refused):
            s.accounting.model_call("p", "m", usage={"usd": 2}, response="dear")
        view = hub.get(s.id)
        assert view.accounting.content(view.accounting.model_calls()[0].response) == b"dear"
        assert view.status == "paused"

    def test_wrong_values_change_nothing(self, hub: Hub) -> None:
        with hub.session("s") as s:
            before = len(list(s.events()))
            for wrong in (
                lambda: s.accounting.model_call("p", ""),
                lambda: s.accounting.model_call("p", "m", usage={"usd": -1}),
                lambda: s.accounting.model_call("p", "m", {"x": object()}),
                lambda: s.accounting.model_call("p", "m", request=object()),
            ):
                with pytest.raises(Invalid):
                    wrong()  # type: ignore[no-untyped-call]
            assert len(list(s.events())) == before
            assert s.accounting.spent() == {}
