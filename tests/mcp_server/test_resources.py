"""Resources and prompts: recorded content by address."""

from __future__ import annotations

import base64
import json

import pytest
from mcp.shared.exceptions import MCPError
from tests.fixtures.mcp_project import WAYS, Project, drive


@pytest.mark.parametrize("way", WAYS)
def test_every_resource_address_returns_its_content(project: Project, way: str) -> None:
    async def work() -> None:
        async with project.agent(way=way) as agent:
            listed = {str(one.uri) for one in (await agent.client.list_resources()).resources}
            assert listed == {"ortet://briefing", "ortet://journal", "ortet://commits"}
            families = (await agent.client.list_resource_templates()).resource_templates
            assert {one.uri_template for one in families} == {
                "ortet://journal/{after}",
                "ortet://commits/{oid}",
                "ortet://files/{oid}/{+path}",
                "ortet://artifacts/{+name}",
            }
            project.write("src/a b.py", "print()\n")
            (project.path / "dot.bin").write_bytes(b"\0\1\2")
            await agent.ok("say", role="user", content="hello")
            oid = (await agent.ok("commit", message="first"))["commit"]["oid"]
            await agent.ok("artifact", name="docs/report.md", data="# fine")
            assert "hello" in (await agent.read("briefing")).text
            page = json.loads((await agent.read("journal")).text)
            assert page["events"][0]["data"]["content"] == "hello"
            later = json.loads((await agent.read(f"journal/{page['last']}")).text)
            assert later["events"] == []
            assert oid in (await agent.read("commits")).text
            assert "A src/a b.py" in (await agent.read(f"commits/{oid}")).text
            file = await agent.read(f"files/{oid[:8]}/src/a%20b.py")
            assert (file.text, file.mime_type) == ("print()\n", "text/x-python")
            blob = await agent.read("files/HEAD/dot.bin")
            assert base64.b64decode(blob.blob) == b"\0\1\2"
            report = await agent.read("artifacts/docs/report.md")
            assert (report.text, report.mime_type) == ("# fine", "text/markdown")

    drive(work)


def test_resources_before_the_first_record_say_so_and_make_no_store(project: Project) -> None:
    async def work() -> None:
        async with project.agent() as agent:
            assert "Nothing is recorded" in (await agent.read("briefing")).text
            assert "no commit yet" in (await agent.read("commits")).text
            with pytest.raises(MCPError, match="nothing is recorded"):
                await agent.read("journal")
            said = await agent.client.get_prompt("resume_work")
            assert "start from the beginning" in said.messages[0].content.text  # type: ignore[union-attr]

    drive(work)
    assert not (project.home / "data").exists()  # who only looks makes no store


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("files/HEAD/../../etc/passwd", "bad_path"),
        ("files/HEAD/..%2f..%2fetc/passwd", "bad_path"),
        ("files/HEAD//etc/passwd", "bad_path"),
        ("files/HEAD/a.txt/", "bad_path"),
        ("files/HEAD/./a.txt", "bad_path"),
        ("files/HEAD/a.txt%00", "bad_path"),
        ("files/HEAD/link/passwd", "no_path"),
        ("files/HEAD/link", "not_a_file"),
        ("files/HEAD/nothing", "no_path"),
        ("files/ffffffffffff/a.txt", "no_ref"),
        ("files/HEAD/big.txt", "too_large"),
        ("commits/no-such-branch", "no_ref"),
        ("journal/-1", "bad_cursor"),
        ("journal/x", "bad_cursor"),
        ("artifacts/nothing", "no_artifact"),
        ("secrets", "no_resource"),
        ("", "no_resource"),
    ],
)
def test_unreadable_resource_addresses_are_refused(
    project: Project, address: str, kind: str
) -> None:
    project.write("a.txt", "fine")
    project.write("big.txt", "x" * (1 << 20) + "x")
    (project.path / "link").symlink_to("/etc")
    project.ortet("init")
    project.ortet("commit", "-m", "first")

    async def work() -> None:
        async with project.agent() as agent:
            await agent.ok("think", text="begin")
            with pytest.raises(MCPError) as caught:
                await agent.read(address)
            assert caught.value.data["kind"] == kind
            assert (caught.value.code == -32603) == (kind == "too_large")

    drive(work)


def test_prompts_are_listed_filled_and_checked(project: Project) -> None:
    async def work() -> None:
        async with project.agent() as agent:
            listed = (await agent.client.list_prompts()).prompts
            assert [(one.name, one.title) for one in listed] == [
                ("resume_work", "Resume work"),
                ("hand_over", "Hand over"),
            ]
            await agent.ok("decide", text="patch the lexer")
            resume = await agent.client.get_prompt("resume_work", {"tokens": "500"})
            assert "patch the lexer" in resume.messages[0].content.text  # type: ignore[union-attr]
            over = await agent.client.get_prompt("hand_over", {"to": "Ann"})
            assert "It goes to: Ann." in over.messages[0].content.text  # type: ignore[union-attr]
            for name, given in (
                ("resume_work", {"tokens": "many"}),
                ("hand_over", {"with": "x"}),
                ("nothing", {}),
            ):
                with pytest.raises(MCPError) as caught:
                    await agent.client.get_prompt(name, given)
                assert caught.value.data["kind"] in ("bad_arguments", "no_prompt")

    drive(work)
