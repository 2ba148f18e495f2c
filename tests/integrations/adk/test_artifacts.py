"""OrtetArtifactService does what ADK's own does: each of these runs against that too."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.artifacts import BaseArtifactService, InMemoryArtifactService
from google.adk.errors.input_validation_error import InputValidationError
from google.genai import types

import ortet
from ortet.errors import Invalid
from ortet.hub.hub import Hub
from ortet.integrations.adk import OrtetArtifactService
from ortet.integrations.adk.sessions import adk_session_name

BOTH = pytest.mark.parametrize("kind", ["ortet", "memory"])
ME: dict[str, Any] = {"app_name": "app", "user_id": "ann", "session_id": "s"}


def service_of(kind: str, hub: Hub) -> BaseArtifactService:
    return OrtetArtifactService(hub) if kind == "ortet" else InMemoryArtifactService()


def blob(data: bytes, media: str | None = "image/png") -> types.Part:
    return types.Part(inline_data=types.Blob(mime_type=media, data=data))


PARTS = [
    blob(b"\x89PNG\x00\xff"),
    blob(b"", "text/plain"),
    blob(b"no type", None),
    types.Part(inline_data=types.Blob(mime_type="a/b", data=b"x", display_name="shown")),
    types.Part(text="words é"),
    types.Part(text=""),
    types.Part(text="thought", thought=True, thought_signature=b"\x00\xff"),
    types.Part(file_data=types.FileData(file_uri="gs://b/o", mime_type="video/mp4")),
    types.Part(file_data=types.FileData(file_uri="https://a/b")),
    blob(b"z" * 3_000_000),
]


@BOTH
@pytest.mark.parametrize("part", PARTS, ids=range(len(PARTS)))
def test_every_kind_of_part_is_saved_and_loaded(kind: str, hub: Hub, part: types.Part) -> None:
    async def through() -> None:
        service = service_of(kind, hub)
        assert await service.load_artifact(**ME, filename="f") is None
        assert await service.save_artifact(**ME, filename="f", artifact=part) == 0
        assert await service.load_artifact(**ME, filename="f") == part
        as_dict = part.model_dump(mode="json", by_alias=True, exclude_none=True)
        assert await service.save_artifact(**ME, filename="f", artifact=as_dict) == 1
        assert await service.load_artifact(**ME, filename="f", version=1) == part

    asyncio.run(through())


@BOTH
def test_artifact_versions_are_numbered_and_listed_with_metadata(kind: str, hub: Hub) -> None:
    async def through() -> None:
        service = service_of(kind, hub)
        for number in range(3):
            given = {"n": number, "deep": {"none": None}}
            made = await service.save_artifact(
                **ME, filename="f.txt", artifact=types.Part(text=str(number)), custom_metadata=given
            )
            assert made == number
        await service.save_artifact(**ME, filename="g.png", artifact=blob(b"x"))
        assert await service.list_versions(**ME, filename="f.txt") == [0, 1, 2]
        assert await service.list_versions(**ME, filename="none") == []
        assert await service.list_artifact_versions(**ME, filename="none") == []
        found = await service.list_artifact_versions(**ME, filename="f.txt")
        assert [one.custom_metadata["n"] for one in found] == [0, 1, 2]
        assert [one.mime_type for one in found] == ["text/plain"] * 3
        assert len({one.canonical_uri for one in found}) == 3
        assert all(one.create_time > 1.7e9 for one in found)
        for wanted, told in ((None, 2), (0, 0), (2, 2)):
            one = await service.get_artifact_version(**ME, filename="f.txt", version=wanted)
            assert one is not None
            assert one.version == told
        for wanted in (3, -1):
            which: dict[str, Any] = {**ME, "filename": "f.txt", "version": wanted}
            assert await service.get_artifact_version(**which) is None
            assert await service.load_artifact(**which) is None
        png = await service.get_artifact_version(**ME, filename="g.png")
        assert png is not None
        assert (png.mime_type, png.custom_metadata) == ("image/png", {})

    asyncio.run(through())


@BOTH
def test_user_artifacts_are_shared_between_sessions(kind: str, hub: Hub) -> None:
    async def through() -> None:
        service = service_of(kind, hub)
        other = {**ME, "session_id": "t"}
        none = {**ME, "session_id": None}
        await service.save_artifact(**ME, filename="a/b.txt", artifact=types.Part(text="here"))
        await service.save_artifact(**ME, filename="user:p", artifact=types.Part(text="mine"))
        await service.save_artifact(**none, filename="user:q", artifact=types.Part(text="mine too"))
        assert await service.list_artifact_keys(**ME) == ["a/b.txt", "user:p", "user:q"]
        assert await service.list_artifact_keys(**other) == ["user:p", "user:q"]
        assert await service.list_artifact_keys(**none) == ["user:p", "user:q"]
        assert await service.load_artifact(**other, filename="user:p") == types.Part(text="mine")
        assert await service.load_artifact(**other, filename="a/b.txt") is None
        stranger = {**ME, "user_id": "bob"}
        assert await service.list_artifact_keys(**stranger) == []
        for call in (
            service.save_artifact(**none, filename="x", artifact=types.Part(text="x")),
            service.load_artifact(**none, filename="x"),
            service.delete_artifact(**none, filename="x"),
            service.save_artifact(**ME, filename="x", artifact=types.Part()),
            service.load_artifact(**{**ME, "user_id": "../other"}, filename="x"),
        ):
            with pytest.raises(InputValidationError):
                await call

    asyncio.run(through())


@BOTH
def test_a_deleted_artifact_starts_again_at_version_zero(kind: str, hub: Hub) -> None:
    async def through() -> None:
        service = service_of(kind, hub)
        await service.delete_artifact(**ME, filename="f")
        for text in ("one", "two"):
            await service.save_artifact(**ME, filename="f", artifact=types.Part(text=text))
        await service.delete_artifact(**ME, filename="f")
        await service.delete_artifact(**ME, filename="f")
        assert await service.list_artifact_keys(**ME) == []
        assert await service.load_artifact(**ME, filename="f") is None
        assert await service.list_versions(**ME, filename="f") == []
        assert await service.save_artifact(**ME, filename="f", artifact=types.Part(text="3")) == 0
        assert await service.load_artifact(**ME, filename="f", version=0) == types.Part(text="3")
        assert await service.load_artifact(**ME, filename="f", version=1) is None
        assert await service.list_versions(**ME, filename="f") == [0]

    asyncio.run(through())


@BOTH
def test_artifact_references_are_resolved_or_refused(kind: str, hub: Hub) -> None:
    async def through() -> None:
        service = service_of(kind, hub)

        def ref(uri: str) -> types.Part:
            return types.Part(file_data=types.FileData(file_uri=uri, mime_type="text/plain"))

        where = "artifact://apps/app/users/ann/sessions/s/artifacts"
        await service.save_artifact(**ME, filename="f", artifact=types.Part(text="it"))
        await service.save_artifact(**ME, filename="g", artifact=ref(f"{where}/f/versions/0"))
        assert await service.load_artifact(**ME, filename="g") == types.Part(text="it")
        await service.save_artifact(**ME, filename="h", artifact=ref(f"{where}/h/versions/0"))
        with pytest.raises(InputValidationError, match="recursion"):
            await service.load_artifact(**ME, filename="h")
        for bad in ("artifact://apps/app/users/bob/artifacts/x/versions/0", "artifact://nonsense"):
            with pytest.raises(InputValidationError):
                await service.save_artifact(**ME, filename="i", artifact=ref(bad))

    asyncio.run(through())


def test_adk_artifacts_are_artifacts_of_the_ortet_session(hub: Hub) -> None:
    async def through() -> None:
        service = OrtetArtifactService(hub)
        await service.save_artifact(**ME, filename="plot.png", artifact=blob(b"one"))
        await service.save_artifact(**ME, filename="plot.png", artifact=blob(b"two"))

    asyncio.run(through())
    view = hub.get(adk_session_name("app", "ann", "s"))
    assert [(one.name, one.version, one.media) for one in view.artifacts()] == [
        ("plot.png", 1, "image/png"),
        ("plot.png", 2, "image/png"),
    ]
    assert view.artifact_store.artifact_data("plot.png") == b"two"
    hub.sweep()
    with ortet.open(hub.root) as other:
        found = asyncio.run(OrtetArtifactService(other).load_artifact(**ME, filename="plot.png"))
        assert found == blob(b"two")
    hub.verify()


def test_metadata_or_a_name_that_cannot_be_stored_is_refused(hub: Hub) -> None:
    async def through() -> None:
        service = OrtetArtifactService(hub)
        given = {"ok": 1, "bad": object()}
        with pytest.raises(Invalid, match="'bad'"):
            await service.save_artifact(
                **ME, filename="f", artifact=types.Part(text="x"), custom_metadata=given
            )
        with pytest.raises(Invalid, match="cannot name an artifact"):
            await service.save_artifact(**ME, filename="a\nb", artifact=types.Part(text="x"))
        assert await service.list_artifact_keys(**ME) == []

    asyncio.run(through())
