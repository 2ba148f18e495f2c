"""Builds the OpenAPI document.

It is built from the same tables as the routes, so that both agree.
"""

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
from ortet._util.structs import describe_properties
from ortet.errors import CODES, OrtetError
from ortet.server.auth.authenticate import COOKIE
from ortet.server.errors import STATUS
from ortet.server.middleware.idempotency import MAX_KEY_LENGTH
from ortet.server.operations.registry import (
    TAG_DESCRIPTIONS,
    Operation,
    operations,
    path_parameters,
)
from ortet.server.streaming.sse import MEDIA as STREAM
from ortet.server.streaming.terminal import PATH as TERMINAL
from ortet.server.streaming.terminal import Attach, terminal
from ortet.server.transfers.routes import BINARY_MEDIA, STREAMING_ROUTES, StreamingRoute
from ortet.sessions.reader import SessionReader

# Constant parts of the OpenAPI document: errors, headers, security schemes and fixed routes.

Json = dict[str, Any]
JSON = "application/json"

ERRORS = {
    401: "The request has no valid token: send one.",
    403: "The token, a lease, a policy or a budget does not allow it, or the request comes from a "
    "page of another site.",
    404: "The named thing does not exist, or the token may not see it.",
    408: "The body did not arrive in time.",
    409: "The state has changed since the caller read it, a name is not unique, or a request with "
    "the same key is in progress.",
    412: "The head is not the one that If-Match names: read the newer events first.",
    413: "The body is too large, or the disk has no space for it.",
    422: "The request is not valid: the message says what to change.",
    429: "This token or address has sent too many requests: wait, then try again.",
    431: "The URL and the headers are too large.",
    500: "A bug of the server, or stored data that does not match its hash.",
    501: "This host, engine or version does not support the operation.",
    503: "A required service is not available at the moment: try again later.",
}
_RETRY_AFTER_STATUSES = (409, 429, 503)

HEADERS: Json = {
    "ETag": {
        "description": "The head of the session, or the id of the content.",
        "schema": {"type": "string"},
    },
    "Retry-After": {
        "description": "Number of seconds after which to try again.",
        "schema": {"type": "integer", "minimum": 0},
    },
    "WWW-Authenticate": {
        "description": "The authentication scheme.",
        "schema": {"type": "string"},
    },
    "Content-Range": {
        "description": "The range of the part, and the total size.",
        "schema": {"type": "string"},
    },
}


def _header(name: str, text: str, **schema: Any) -> Json:
    return {
        "name": name,
        "in": "header",
        "description": text,
        "schema": {"type": "string", **schema},
    }


IDEMPOTENCY_KEY = "IdempotencyKey"
PARAMETERS: Json = {
    IDEMPOTENCY_KEY: _header(
        "Idempotency-Key",
        "A request that is repeated with the same key within a day runs once, and gets the same "
        "answer.",
        minLength=1,
        maxLength=MAX_KEY_LENGTH,
        pattern="^[ -~]+$",
    ),
    "IfMatch": _header(
        "If-Match", "Run only if this is still the head: the ETag of an earlier answer, or *."
    ),
    "Range": _header("Range", "A part of the content, such as bytes=0-1023."),
    "IfNoneMatch": _header(
        "If-None-Match", "The ETag of the client's copy. The answer is 304 if it is current."
    ),
    "LastEventID": _header(
        "Last-Event-ID", "Continue after this event. Browsers send it when they reconnect."
    ),
    "ContentDigest": _header("Content-Digest", "The digest of the body, such as sha-256=:...:"),
}

SECURITY: Json = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token from `ortet access create`. Each operation says which right it "
        "needs: read, write or admin. Each right includes those before it.",
    },
    "cookie": {
        "type": "apiKey",
        "in": "cookie",
        "name": COOKIE,
        "description": "The token in a cookie, which POST /login sets for a browser.",
    },
}


def error_schema() -> Json:
    """Return the schema of `OrtetError.as_dict`."""
    classes = [*CODES, *STATUS]
    names = {one.name for base in classes for one in (base, *base.__subclasses__())}
    return {
        "title": "Error",
        "description": "The shape of all errors. `error`: the class, which says how to react. "
        "`kind`: the case; kinds are only added, never changed. `message`: what happened, and what "
        "to do next.",
        "type": "object",
        "properties": {
            "error": {"enum": sorted(names | {OrtetError.name, "bug"})},
            "kind": {"type": "string"},
            "message": {"type": "string"},
            "details": {"type": "object"},
        },
        "required": list(OrtetError("", "").as_dict()),
        "additionalProperties": False,
    }


def error_answers() -> Json:
    """Return one response component for each error status."""
    answers: Json = {}
    for status, text in ERRORS.items():
        headers = []
        if status == 401:
            headers.append("WWW-Authenticate")
        if status in _RETRY_AFTER_STATUSES:
            headers.append("Retry-After")
        answers[f"Error{status}"] = {
            "description": text,
            **response_headers(*headers),
            "content": {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}},
        }
    return answers


def response_headers(*names: str) -> Json:
    """Return references to header components, for a response."""
    if not names:
        return {}
    return {
        "headers": {
            name: {"$ref": f"#/components/headers/{component_name(name)}"} for name in names
        }
    }


def component_name(name: str) -> str:
    """Return the component name of a header."""
    return name.replace("-", "")


def error_refs(*statuses: int) -> Json:
    """Return references to the error responses of these statuses."""
    return {
        str(status): {"$ref": f"#/components/responses/Error{status}"}
        for status in sorted(set(statuses))
    }


def _public_operation(id_: str, tag: str, text: str, answers: Json, **more: Any) -> Json:
    about = {"operationId": id_, "tags": [tag], "summary": text, "security": [], **more}
    return {**about, "responses": answers}


def _response(text: str, media: str, schema: Json | None = None) -> Json:
    return {"description": text, "content": {media: {"schema": schema or {"type": "string"}}}}


_LOGIN_REQUEST = {
    "type": "object",
    "properties": {"token": {"type": "string"}},
    "required": ["token"],
}
_LOGIN_RESPONSE = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("token", "name", "allows")},
    "required": ["token", "name", "allows"],
}
_READY_RESPONSE = {
    "type": "object",
    "properties": {
        "ready": {"const": True},
        "not_well": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["ready"],
}
_FORM = "application/x-www-form-urlencoded"


def fixed_paths() -> Json:
    """Return the paths that are not in the table of operations. None of them needs a token."""
    return {
        "/healthz": {
            "get": _public_operation(
                "healthz",
                "server",
                "Check that the server is alive.",
                {"200": _response("ok", "text/plain")},
            )
        },
        "/readyz": {
            "get": _public_operation(
                "readyz",
                "server",
                "Check that the server is ready.",
                {
                    "200": _response("The server is ready.", JSON, _READY_RESPONSE),
                    **error_refs(503),
                },
                description="The server is ready if its store can be written and it is not "
                "stopping. The answer takes at most about two seconds. On an error, `parts` of the "
                "details names the failed services. A bucket that does not answer is only named "
                "in `not_well`, because journals do not need it.",
            )
        },
        "/metrics": {
            "get": _public_operation(
                "metrics",
                "server",
                "Return metrics for Prometheus. They name no tenant.",
                {"200": _response("Text of version 0.0.4.", "text/plain"), **error_refs(403, 503)},
            )
        },
        "/openapi.json": {
            "get": _public_operation(
                "openapi",
                "server",
                "Return this document.",
                {
                    "200": _response("OpenAPI 3.1.", JSON, {"type": "object"}),
                    **error_refs(403, 503),
                },
            )
        },
        "/docs": {
            "get": _public_operation(
                "docs",
                "server",
                "Show this document as a page.",
                {"200": _response("A page.", "text/html"), **error_refs(403, 503)},
            )
        },
        **_login_paths(),
    }


def _login_paths() -> Json:
    see_other = {"description": "A form was sent: continue at the page."}
    return {
        "/login": {
            "post": _public_operation(
                "login",
                "access",
                "Log a browser in with a token. The token is stored in a cookie that scripts "
                "cannot read.",
                {
                    "200": _response("The token's name and rights.", JSON, _LOGIN_RESPONSE),
                    "303": see_other,
                    **error_refs(401, 403, 408, 413, 422, 429, 503),
                },
                requestBody={
                    "required": True,
                    "content": {
                        JSON: {"schema": _LOGIN_REQUEST},
                        _FORM: {"schema": _LOGIN_REQUEST},
                    },
                },
            )
        },
        "/logout": {
            "post": _public_operation(
                "logout",
                "access",
                "Delete the cookie of the browser. The token stays valid.",
                {
                    "204": {"description": "The cookie is deleted."},
                    "303": see_other,
                    **error_refs(403, 503),
                },
            )
        },
    }


_COMMON_STATUSES = (401, 403, 429, 431, 500, 503)
_WRITE_STATUSES = (408, 409, 413, 422, 501)
_SESSION_PARAMETER_TEXT = (
    "A session: its id, or its name if the name has no slash and only one agent uses it."
)
_HOST_ACCESS_TEXT = "Needs a token that may run commands on the server's host."
_API_DESCRIPTION = """\
Git for the whole AI agent. Lists come in pages: the `next` of a page is the `after` of the next
request. Every write accepts an Idempotency-Key. The ETag of a session is its head: if a request has
it as If-Match, the head moves only if it has not changed since. All errors have the same shape.
Times are in ns since 1970.
"""
_TAGS = {
    "server": "Health, readiness, metrics and this document.",
    "access": "Log in to the page, and log out.",
    "terminal": "A shell in a live machine, over a WebSocket.",
}


class OpenApiDocument:
    """The OpenAPI document, built at the first request for it."""

    @cached_property
    def data(self) -> Json:
        return build_document()

    @cached_property
    def text(self) -> bytes:
        return msgspec.json.encode(self.data)

    def routes(self) -> list[Route]:
        return [Route("/openapi.json", self._answer)]

    async def _answer(self, request: Request) -> Response:
        await run_sync(lambda: self.text)  # built once, outside the event loop
        tag = f'"{sha256(self.text).hexdigest()[:32]}"'
        headers = {"etag": tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(self.text, headers=headers, media_type=JSON)


def build_document() -> Json:
    """Return the whole document."""
    table = operations()
    schemas, components = _schemas(table)
    paths: Json = fixed_paths()
    tags = dict(_TAGS)
    for operation in table:
        item = paths.setdefault(_strip_converters(operation.path), {})
        item[operation.method.lower()] = _operation(operation, schemas, components)
        text = TAG_DESCRIPTIONS.get(operation.tag) or _module_doc(operation.handler)
        tags.setdefault(operation.tag, text)
    for route in STREAMING_ROUTES:
        item = paths.setdefault(_strip_converters(route.path), {})
        item[route.method.lower()] = _streaming_operation(route, schemas, components)
        tags.setdefault(_route_tag(route), _module_doc(route.handler))
    paths.setdefault(TERMINAL, {})["get"] = _terminal(schemas, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Ortet", "version": __version__, "description": _API_DESCRIPTION},
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, text in tags.items()],
        "paths": paths,
        "components": {
            "schemas": dict(sorted({**components, "Error": error_schema()}.items())),
            "responses": error_answers(),
            "parameters": PARAMETERS,
            "headers": {component_name(name): one for name, one in HEADERS.items()},
            "securitySchemes": SECURITY,
        },
    }


def _schemas(table: list[Operation]) -> tuple[dict[Any, Json], Json]:
    """Return the schemas by type, and the components by name."""
    types: list[Any] = [Attach]
    for operation in table:
        types += [
            one for one in (operation.request_type, operation.response_type) if one is not None
        ]
    for route in STREAMING_ROUTES:
        types += [one for one in (route.request_type, route.response_type) if one is not None]
    types = list(dict.fromkeys(types))
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}", schema_hook=lambda _: {"type": "string"}
    )
    for component in components.values():
        if "description" in component:
            component["description"] = inspect.cleandoc(component["description"])
        describe_properties(component)
    return dict(zip(types, schemas, strict=True)), dict(components)


def _operation(operation: Operation, schemas: dict[Any, Json], components: Json) -> Json:
    ask = _request_schema(operation.request_type, schemas, components)
    in_path = list(path_parameters(operation.path))
    parameters = [*_path_parameters(operation.path, ask)]
    statuses = [*_COMMON_STATUSES]
    if operation.in_query:
        parameters += _query_parameters(ask, in_path)
    if operation.writes:
        parameters.append(_parameter_ref(IDEMPOTENCY_KEY))
        statuses += _WRITE_STATUSES
    if operation.moves_head:
        parameters.append(_parameter_ref("IfMatch"))
        statuses.append(412)
    if in_path or operation.request_type is not None:
        statuses += [404, 422]
    if in_path:
        statuses.append(409)  # several sessions may have the same name
    tagged = operation.target is SessionReader or operation.moves_head
    answer = {
        "description": "The request succeeded.",
        **(response_headers("ETag") if tagged else {}),
        "content": {JSON: {"schema": schemas.get(operation.response_type, {"type": "null"})}},
    }
    entry = _operation_object(operation.name, operation.tag, operation.text, operation.needs)
    if operation.needs_host:
        entry["description"] = _join_paragraphs(entry["description"], _HOST_ACCESS_TEXT)
    if ask and operation.in_query:
        entry["description"] = _join_paragraphs(entry["description"], _doc(operation.request_type))
    entry["parameters"] = parameters
    if not operation.in_query and (body := _body(operation, schemas, ask, in_path)):
        entry["requestBody"] = body
    entry["responses"] = {str(operation.status): answer, **error_refs(*statuses)}
    return entry


def _streaming_operation(route: StreamingRoute, schemas: dict[Any, Json], components: Json) -> Json:
    ask = _request_schema(route.request_type, schemas, components)
    parameters = [*_path_parameters(route.path, {}), *_query_parameters(ask, ())]
    statuses = [*_COMMON_STATUSES, 404, 409, 422]
    schema = schemas[route.response_type] if route.response_type is not None else {}
    # the content type of a stored file is not known in advance
    media = "*/*" if route.response_media == BINARY_MEDIA else route.response_media
    answer: Json = {"description": "The request succeeded.", "content": {media: {"schema": schema}}}
    answers: Json = {str(route.status): answer}
    if route.response_media == STREAM:
        answer["description"] = "Events, until the client disconnects or the stream ends."
        answer["content"][STREAM] = {"schema": {"type": "string"}}
        answers["204"] = {
            "description": "The stream has ended, and the client has all of its events."
        }
        parameters.append(_parameter_ref("LastEventID"))
    elif route.method == "GET" and route.response_media != JSON:
        answer |= response_headers("ETag")
        part = {
            **answer,
            **response_headers("ETag", "Content-Range"),
            "description": "The requested part.",
        }
        answers["206"] = part
        answers["304"] = {"description": "The client's copy is current."}
        answers["416"] = {
            "description": "The content has no such part.",
            **response_headers("Content-Range"),
        }
        parameters += [_parameter_ref("Range"), _parameter_ref("IfNoneMatch")]
    entry = _operation_object(route.name, _route_tag(route), route.text, route.needs)
    entry["description"] = _join_paragraphs(entry["description"], _doc(route.request_type))
    if route.request_media:
        parameters += [_parameter_ref(IDEMPOTENCY_KEY), _parameter_ref("ContentDigest")]
        entry["requestBody"] = {"required": True, "content": {route.request_media: {}}}
        statuses += _WRITE_STATUSES
    entry["parameters"] = parameters
    entry["responses"] = {**answers, **error_refs(*statuses)}
    return entry


def _terminal(schemas: dict[Any, Json], components: Json) -> Json:
    ask = _request_schema(Attach, schemas, components)
    entry = _operation_object("terminal", "terminal", _doc(terminal), "write")
    frames = _module_doc(terminal, after_summary=True)
    entry["description"] = _join_paragraphs(entry["description"], frames, _doc(Attach))
    entry["parameters"] = [*_path_parameters(TERMINAL, {}), *_query_parameters(ask, ())]
    switched = {"description": "The connection becomes a WebSocket."}
    entry["responses"] = {
        "101": switched,
        **error_refs(*_COMMON_STATUSES, 404, 409, 422, 501),
    }
    return entry


def _operation_object(name: str, tag: str, text: str, needs: str) -> Json:
    summary, *rest = re.split(r"\.\s+", inspect.cleandoc(text), maxsplit=1)
    return {
        "operationId": name,
        "tags": [tag],
        "summary": " ".join(summary.split()).removesuffix(".") + ".",
        "description": _join_paragraphs(*rest, f"Needs a token that allows {needs}."),
        "security": [{"bearer": [needs]}, {"cookie": [needs]}],
    }


def _request_schema(request_type: Any, schemas: dict[Any, Json], components: Json) -> Json:
    """Return the object schema of a request, with its fields."""
    if request_type is None:
        return {}
    schema: Json = components[schemas[request_type]["$ref"].rpartition("/")[2]]
    return schema


def _path_parameters(path: str, request_schema: Json) -> Iterator[Json]:
    for part in path.split("{")[1:]:
        name, _, how = part.partition("}")[0].partition(":")
        schema = request_schema.get("properties", {}).get(name, {"type": "string"})
        parameter = {"name": name, "in": "path", "required": True}
        if schema.get("type") == "string":
            schema = {"minLength": 1, **schema}
        if name == "session":
            parameter["description"] = _SESSION_PARAMETER_TEXT
        elif how == "path":
            parameter["description"] = "The value may contain slashes."
        yield {**parameter, "schema": schema}


def _query_parameters(request_schema: Json, in_path: Any) -> Iterator[Json]:
    required = request_schema.get("required", ())
    for name, schema in request_schema.get("properties", {}).items():
        if name not in in_path:
            # a parameter that is left out is null; a query cannot express null otherwise
            own_schema = {
                key: one for key, one in schema.items() if (key, one) != ("default", None)
            }
            own_schema |= _unless_null(own_schema.pop("anyOf", ()))
            parameter: Json = {"name": name, "in": "query", "required": name in required}
            if text := own_schema.pop("description", ""):
                parameter["description"] = text
            yield {**parameter, "schema": own_schema}


def _unless_null(kinds: Any) -> Json:
    some: list[Json] = [one for one in kinds if one != {"type": "null"}]
    return some[0] if len(some) == 1 else {"anyOf": some} if some else {}


def _body(
    operation: Operation, schemas: dict[Any, Json], request_schema: Json, in_path: list[str]
) -> Json | None:
    properties = request_schema.get("properties", {})
    own = {name: one for name, one in properties.items() if name not in in_path}
    if not own:
        return None
    schema = schemas[operation.request_type]
    required = [name for name in request_schema["required"] if name in own]
    if len(own) < len(properties):
        schema = {**request_schema, "properties": own, "required": required}
    return {"required": bool(required), "content": {JSON: {"schema": schema}}}


def _parameter_ref(name: str) -> Json:
    return {"$ref": f"#/components/parameters/{name}"}


def _strip_converters(path: str) -> str:
    """Return a path without the converters of its parameters."""
    return re.sub(r":[a-z]+\}", "}", path)


def _route_tag(route: StreamingRoute) -> str:
    module = route.handler.__module__.rpartition(".")[2]
    return "files" if module == "commit_files" else module


def _module_doc(function: Any, *, after_summary: bool = False) -> str:
    """Return the first paragraph of the module docstring of a function, or the rest."""
    text = inspect.cleandoc(sys.modules[function.__module__].__doc__ or "")
    first, _, rest = text.partition("\n\n")
    return rest if after_summary else " ".join(first.split())


def _doc(of: Any) -> str:
    return inspect.cleandoc(of.__doc__ or "")


def _join_paragraphs(*texts: str) -> str:
    return "\n\n".join(filter(None, texts))
