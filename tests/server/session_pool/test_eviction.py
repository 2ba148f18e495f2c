"""A session that a server keeps open between requests: another process gets it when it asks."""

from __future__ import annotations

import pytest
from tests.fixtures.http_server import Serve, Server
from tests.fixtures.waiting import WAIT

import ortet
from ortet.errors import Refused
from ortet.sessions.writing import lease_handover


@pytest.fixture
def patient(serve: Serve) -> Server:
    """One that lets nothing go by itself for an hour."""
    return serve("--no-auth", "--limit", "linger=3600")


def begin(server: Server) -> None:
    client = server.client()
    assert client.ask("POST", "/sessions", {"name": "talk"}).status == 200
    assert say(server, "hello") == 201


def say(server: Server, text: str) -> int:
    body = {"role": "user", "content": text}
    return server.client().ask("POST", "/sessions/talk/messages", body).status


@pytest.mark.parametrize("where", ["store", "url"])
def test_open_session_of_a_server_is_handed_over_to_another_process(
    patient: Server, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        lease_handover, "_HANDOVER_TIMEOUT_SECONDS", WAIT
    )  # however slow this host is to let it go
    begin(patient)
    with ortet.open(str(getattr(patient, where))) as hub, hub.session("talk") as session:
        session.say("assistant", "hi")
        assert [one.content for one in session.messages()] == ["hello", "hi"]
    assert say(patient, "and back") == 201
    with ortet.open(str(patient.store)) as hub:
        said = [one.content for one in hub.get("talk").messages()]
    assert said == ["hello", "hi", "and back"]


def test_session_opened_outside_the_server_is_refused_at_once(patient: Server) -> None:
    with ortet.open(str(patient.store)) as hub, hub.session("talk") as session:
        session.say("user", "mine")
        with ortet.open(str(patient.store)) as other:
            asked = other.signal.token("rooms")
            with pytest.raises(Refused, match="open in this process"):
                other.session("talk")
            assert not other.signal.wait("rooms", asked, 0)


@pytest.mark.slow
def test_session_with_a_running_program_is_not_handed_over(patient: Server) -> None:
    begin(patient)
    ran = patient.client().ask(
        "POST", "/sessions/talk/jobs", {"name": "sleep", "command": "sleep 600"}
    )
    assert ran.status == 201, ran
    with ortet.open(str(patient.store)) as hub, pytest.raises(Refused, match="talk"):
        hub.session("talk")
    assert say(patient, "still here") == 201
