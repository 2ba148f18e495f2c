"""Random requests from the OpenAPI document, valid and invalid: each gets a documented answer.

scripts/soak sends more of them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.specs.openapi import checks
from tests.fixtures import tally
from tests.fixtures.http_server import Client, Server
from tests.fixtures.waiting import WAIT

from ortet.server.openapi import build_document

SOAK = int(os.environ.get("ORTET_SOAK", "1"))
EXAMPLES = 3 * SOAK
"""Of each operation, once as it should be asked, once as it should not; and twice as many edges."""
NAME = "fuzzed"
CHECKS: list[Any] = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
COMMITS = [f"default/{NAME}", f"default/{NAME}~1"]
_KNOWN = {
    "session": {"const": NAME},
    "commit": {"enum": COMMITS},
    "heartbeat": {"const": 1},
}
_PAGED = ("/sessions", "/sessions/{session}/events", "/sessions/{session}/messages")
_ENDS = ("close", "archive", "remove", "undo", "restore", "rewind")
_TEXT = ("application/json", "application/x-www-form-urlencoded")
_STREAM = "text/event-stream"


def _told() -> dict[str, Any]:
    """The document, where what names a session or a commit mostly names one that is there."""
    told: dict[str, Any] = json.loads(json.dumps(build_document()))
    for path, methods in told["paths"].items():
        for operation in methods.values():
            given = operation.get("parameters", [])
            if path not in _PAGED:  # made up, it is no cursor: nothing behind it would be reached
                given[:] = [one for one in given if one.get("name") != "after"]
            for one in given:
                if one.get("name") in _KNOWN:
                    one["schema"] = _KNOWN[one["name"]]
            content = operation.get("requestBody", {}).get("content", {})
            if any(media not in _TEXT for media in content):
                binary = {"schema": {"type": "string", "format": "binary"}}
                operation["requestBody"]["content"] = {"application/octet-stream": binary}
    _name_commits(told)
    return told


def _name_commits(value: Any) -> None:
    if isinstance(value, dict):
        if str(value.get("description", "")).startswith("A commit: ") and "anyOf" not in value:
            plain = dict(value)
            value.clear()
            value["anyOf"] = [{"enum": COMMITS}, plain]
            return
        for one in value.values():
            _name_commits(one)
    elif isinstance(value, list):
        for one in value:
            _name_commits(one)


def _sound(found: Any) -> Any:
    return found.ok()


SCHEMA = schemathesis.openapi.from_dict(_told())
OPERATIONS = {
    f"{one.method.upper()} {one.path}": one
    for one in map(_sound, SCHEMA.get_all_operations())
    if "101" not in one.definition.raw["responses"]
}


class Scene:
    """A server, and an admin of a tenant: one who may do anything but run commands on the host."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.token = server.token("fuzz", "--tenant", "fuzz", "--allow", "admin")
        self.client: Client = server.client(self.token)
        self.web = requests.Session()
        self.web.trust_env = False
        self._keys = count()
        self._sound = False

    def prepare(self) -> None:
        """The session is there, and in use, whatever was done to it."""
        if self._sound:
            return
        found = self.client.ask("GET", f"/sessions/{NAME}")
        self._sound = True
        if found.status == 200 and found.data["status"] in ("active", "paused", "open"):
            return
        if found.status == 200:
            self.client.delete(f"/sessions/{NAME}")
        self.client.post("/sessions", {"name": NAME, "goal": "to be asked"})
        place = f"/sessions/{NAME}"
        self.client.post(f"{place}/messages", {"role": "user", "content": "hello"})
        self.client.post(f"{place}/notes", {"key": "branch", "value": "fix"})
        self.client.post(f"{place}/commits", {"message": "first"})
        self.client.post(f"{place}/questions", {"text": "may I?"})
        self.client.post(f"{place}/decisions", {"text": "to go on"})
        self.client.put(f"{place}/plan", {"steps": ["one", "two"]})
        assert self.client.ask("PUT", f"{place}/artifacts/report.txt", b"all is well").status == 201
        self.client.post(f"{place}/commits", {"message": "second"})

    def ask(self, case: Case[Any]) -> None:
        tally.count(tally.FUZZED)
        self.prepare()
        headers = {"Authorization": f"Bearer {self.token}"}
        key = dict(case.headers or {}).get("Idempotency-Key")
        if isinstance(key, str) and re.fullmatch(r"[!-~]{1,200}", key):
            headers["Idempotency-Key"] = f"{key[:100]}-{next(self._keys)}"  # one of its own
        about = case.operation.definition.raw
        if _STREAM in about["responses"].get("200", {}).get("content", {}):
            self._listen(case, headers)
            return
        reply = case.call(
            self.server.url,
            session=self.web,
            headers=headers,
            timeout=2 * WAIT,
            allow_redirects=False,
        )
        if reply.status_code in (404, 409) or about["operationId"] in _ENDS:
            self._sound = False
        assert reply.status_code != 500, reply.content
        case.validate_response(reply, checks=CHECKS)

    def _listen(self, case: Case[Any], headers: dict[str, str]) -> None:
        """Streams do not end: only how they begin is looked at."""
        given = case.as_transport_kwargs(self.server.url, headers)
        with self.web.request(
            **given, stream=True, timeout=2 * WAIT, allow_redirects=False
        ) as reply:
            assert reply.status_code != 500, reply.content
            if reply.status_code == 200:
                assert reply.headers["content-type"].startswith(_STREAM)
            else:
                case.validate_response(reply, checks=CHECKS)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    server = Server(tmp_path_factory.mktemp("fuzz"), "--limit", "rate=0", "--limit", "patience=60")
    try:
        yield Scene(server)
    finally:
        server.kill()


bounded = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def _fuzzed(scene: Scene, cases: Any) -> None:
    @bounded
    @given(cases)
    def asked(case: Case[Any]) -> None:
        scene.ask(case)

    asked()


@pytest.mark.soak
@pytest.mark.parametrize("name", OPERATIONS)
def test_valid_fuzzed_requests_are_answered_as_documented(scene: Scene, name: str) -> None:
    _fuzzed(scene, OPERATIONS[name].as_strategy())


@pytest.mark.soak
@pytest.mark.parametrize(
    "name", [name for name, one in OPERATIONS.items() if one.definition.raw.get("parameters")]
)
@pytest.mark.slow
def test_invalid_fuzzed_requests_are_answered_as_documented(scene: Scene, name: str) -> None:
    _fuzzed(scene, OPERATIONS[name].as_strategy(GenerationMode.NEGATIVE))


@pytest.mark.soak
@pytest.mark.parametrize("name", OPERATIONS)
def test_boundary_values_of_every_parameter_are_answered_as_documented(
    scene: Scene, name: str
) -> None:
    """The least, the most, one more, another type, a key too many: of every parameter in turn."""
    cases = SCHEMA.iter_coverage_cases(
        OPERATIONS[name],
        generation_modes=list(GenerationMode),
        generation_config=SCHEMA.config.generation,
    )
    for case in islice(cases, 2 * EXAMPLES):
        scene.ask(case)
