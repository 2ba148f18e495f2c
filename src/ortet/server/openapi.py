"""The OpenAPI document: made of the tables from which the routes are made, so that both agree."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from functools import cached_property
from hashlib import sha256
from typing import Any

import msgspec
from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ortet import __version__
from ortet.server import described
from ortet.server.described import JSON, ONCE, Json, errors, told_headers
from ortet.server.operations.registry import Operation, named_in, operations
from ortet.server.streaming.sse import MEDIA as STREAM
from ortet.server.streaming.terminal import PATH as TERMINAL
from ortet.server.streaming.terminal import Attach, terminal
from ortet.server.transfers.routes import ANY, FLOWS, Flow
from ortet.sessions.reader import View

_ALWAYS = (401, 403, 429, 431, 500, 503)
_WRITE = (408, 409, 413, 422, 501)
_SESSION = "A session: its id, or its name where that holds no slash and is one agent's."
_RUNS = "Only for tokens that may run commands on the server's host."
_ABOUT = """\
Git for the whole AI agent. Lists come in pages: `next` of one is `after` of the following. Every
write takes an Idempotency-Key. The head of a session is its ETag: give it as If-Match, and what
moves the head is done only if nobody else has. Errors have one shape. Times are in ns since 1970.
"""
_TAGS = {
    "server": "Is it alive, can it work, what does it do.",
    "access": "A cookie for the page.",
    "terminal": "A shell in a live machine, over a WebSocket.",
}


class Document:
    """Made when somebody first asks for it."""

    @cached_property
    def data(self) -> Json:
        return document()

    @cached_property
    def text(self) -> bytes:
        return msgspec.json.encode(self.data)

    def routes(self) -> list[Route]:
        return [Route("/openapi.json", self._answer)]

    async def _answer(self, request: Request) -> Response:
        await run_sync(lambda: self.text)  # made once, in a while that others need not wait
        tag = f'"{sha256(self.text).hexdigest()[:32]}"'
        headers = {"etag": tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(self.text, headers=headers, media_type=JSON)


def document() -> Json:
    """All of it, as JSON would have it."""
    table = operations()
    schemas, components = _schemas(table)
    paths: Json = described.fixed_paths()
    tags = dict(_TAGS)
    for operation in table:
        at = paths.setdefault(_plain(operation.path), {})
        at[operation.method.lower()] = _operation(operation, schemas, components)
        tags.setdefault(operation.noun, _says(operation.do))
    for flow in FLOWS:
        at = paths.setdefault(_plain(flow.path), {})
        at[flow.method.lower()] = _flow(flow, schemas, components)
        tags.setdefault(_noun(flow), _says(flow.do))
    paths.setdefault(TERMINAL, {})["get"] = _terminal(schemas, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Ortet", "version": __version__, "description": _ABOUT},
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, text in tags.items()],
        "paths": paths,
        "components": {
            "schemas": dict(sorted({**components, "Error": described.error_schema()}.items())),
            "responses": described.error_answers(),
            "parameters": described.PARAMETERS,
            "headers": {described.part(name): one for name, one in described.HEADERS.items()},
            "securitySchemes": described.SECURITY,
        },
    }


def _schemas(table: list[Operation]) -> tuple[dict[Any, Json], Json]:
    """By type, and by name."""
    types: list[Any] = [Attach]
    for operation in table:
        types += [one for one in (operation.ask, operation.gives) if one is not None]
    for flow in FLOWS:
        types += [one for one in (flow.ask, flow.told) if one is not None]
    types = list(dict.fromkeys(types))
    found, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}", schema_hook=lambda _: {"type": "string"}
    )
    for one in components.values():
        if "description" in one:
            one["description"] = inspect.cleandoc(one["description"])
    return dict(zip(types, found, strict=True)), dict(components)


def _operation(operation: Operation, schemas: dict[Any, Json], components: Json) -> Json:
    ask = _fields(operation.ask, schemas, components)
    in_path = list(named_in(operation.path))
    parameters = [*_path_parameters(operation.path, ask)]
    statuses = [*_ALWAYS]
    if operation.in_query:
        parameters += _query_parameters(ask, in_path)
    if operation.writes:
        parameters.append(_shared(ONCE))
        statuses += _WRITE
    if operation.moves:
        parameters.append(_shared("IfMatch"))
        statuses.append(412)
    if in_path or operation.ask is not None:
        statuses += [404, 422]
    if in_path:
        statuses.append(409)  # a name of several
    tagged = operation.on is View or operation.moves
    answer = {
        "description": "Done.",
        **(told_headers("ETag") if tagged else {}),
        "content": {JSON: {"schema": schemas.get(operation.gives, {"type": "null"})}},
    }
    made = _about(operation.name, operation.noun, operation.text, operation.needs)
    if operation.runs:
        made["description"] = _with(made["description"], _RUNS)
    if ask and operation.in_query:
        made["description"] = _with(made["description"], _doc(operation.ask))
    made["parameters"] = parameters
    if not operation.in_query and (body := _body(operation, schemas, ask, in_path)):
        made["requestBody"] = body
    made["responses"] = {str(operation.status): answer, **errors(*statuses)}
    return made


def _flow(flow: Flow, schemas: dict[Any, Json], components: Json) -> Json:
    ask = _fields(flow.ask, schemas, components)
    parameters = [*_path_parameters(flow.path, {}), *_query_parameters(ask, ())]
    statuses = [*_ALWAYS, 404, 409, 422]
    schema = schemas[flow.told] if flow.told is not None else {}
    # what was stored says itself what it is
    media = "*/*" if flow.gives == ANY else flow.gives
    answer: Json = {"description": "Done.", "content": {media: {"schema": schema}}}
    answers: Json = {str(flow.status): answer}
    if flow.gives == STREAM:
        answer["description"] = "Events, until the client leaves or there will be no more."
        answer["content"][STREAM] = {"schema": {"type": "string"}}
        answers["204"] = {"description": "It is over, and the client has all of it."}
        parameters.append(_shared("LastEventID"))
    elif flow.method == "GET" and flow.gives != JSON:
        answer |= told_headers("ETag")
        part = {**answer, **told_headers("ETag", "Content-Range"), "description": "The part."}
        answers["206"] = part
        answers["304"] = {"description": "The client has it."}
        answers["416"] = {"description": "There is no such part.", **told_headers("Content-Range")}
        parameters += [_shared("Range"), _shared("IfNoneMatch")]
    made = _about(flow.name, _noun(flow), flow.text, flow.needs)
    made["description"] = _with(made["description"], _doc(flow.ask))
    if flow.takes:
        parameters += [_shared(ONCE), _shared("ContentDigest")]
        made["requestBody"] = {"required": True, "content": {flow.takes: {}}}
        statuses += _WRITE
    made["parameters"] = parameters
    made["responses"] = {**answers, **errors(*statuses)}
    return made


def _terminal(schemas: dict[Any, Json], components: Json) -> Json:
    ask = _fields(Attach, schemas, components)
    made = _about("terminal", "terminal", _doc(terminal), "write")
    frames = _says(terminal, whole=True)
    made["description"] = _with(made["description"], frames, _doc(Attach))
    made["parameters"] = [*_path_parameters(TERMINAL, {}), *_query_parameters(ask, ())]
    switched = {"description": "A WebSocket: this request is its handshake."}
    made["responses"] = {"101": switched, **errors(*_ALWAYS, 404, 409, 422, 501)}
    return made


def _about(name: str, noun: str, text: str, needs: str) -> Json:
    summary, _, rest = inspect.cleandoc(text).partition(". ")
    return {
        "operationId": name,
        "tags": [noun],
        "summary": " ".join(summary.split()).removesuffix(".") + ".",
        "description": _with(rest, f"Needs a token that allows {needs}."),
        "security": [{"bearer": [needs]}, {"cookie": [needs]}],
    }


def _fields(ask: Any, schemas: dict[Any, Json], components: Json) -> Json:
    """The schema of what is asked: an object, with its own fields."""
    if ask is None:
        return {}
    found: Json = components[schemas[ask]["$ref"].rpartition("/")[2]]
    return found


def _path_parameters(path: str, ask: Json) -> Iterator[Json]:
    for part in path.split("{")[1:]:
        name, _, how = part.partition("}")[0].partition(":")
        schema = ask.get("properties", {}).get(name, {"type": "string"})
        made = {"name": name, "in": "path", "required": True}
        if schema.get("type") == "string":
            schema = {"minLength": 1, **schema}
        if name == "session":
            made["description"] = _SESSION
        elif how == "path":
            made["description"] = "It may hold slashes."
        yield {**made, "schema": schema}


def _query_parameters(ask: Json, in_path: Any) -> Iterator[Json]:
    required = ask.get("required", ())
    for name, schema in ask.get("properties", {}).items():
        if name not in in_path:
            # what is left out is null: a query has no other word for it
            given = {key: one for key, one in schema.items() if (key, one) != ("default", None)}
            given |= _unless_null(given.pop("anyOf", ()))
            made: Json = {"name": name, "in": "query", "required": name in required}
            if text := given.pop("description", ""):
                made["description"] = text
            yield {**made, "schema": given}


def _unless_null(kinds: Any) -> Json:
    some: list[Json] = [one for one in kinds if one != {"type": "null"}]
    return some[0] if len(some) == 1 else {"anyOf": some} if some else {}


def _body(
    operation: Operation, schemas: dict[Any, Json], ask: Json, in_path: list[str]
) -> Json | None:
    properties = ask.get("properties", {})
    own = {name: one for name, one in properties.items() if name not in in_path}
    if not own:
        return None
    schema = schemas[operation.ask]
    required = [name for name in ask["required"] if name in own]
    if len(own) < len(properties):
        schema = {**ask, "properties": own, "required": required}
    return {"required": bool(required), "content": {JSON: {"schema": schema}}}


def _shared(name: str) -> Json:
    return {"$ref": f"#/components/parameters/{name}"}


def _plain(path: str) -> str:
    """Without the converters of its parameters."""
    return re.sub(r":[a-z]+\}", "}", path)


def _noun(flow: Flow) -> str:
    module = flow.do.__module__.rpartition(".")[2].removeprefix("stream_")
    return "files" if module == "commit_files" else module


def _says(function: Any, *, whole: bool = False) -> str:
    """What the module of a function says about itself."""
    text = inspect.cleandoc(sys.modules[function.__module__].__doc__ or "")
    first, _, rest = text.partition("\n\n")
    return rest if whole else " ".join(first.split())


def _doc(of: Any) -> str:
    return inspect.cleandoc(of.__doc__ or "")


def _with(*texts: str) -> str:
    return "\n\n".join(filter(None, texts))
