"""The reference page: the OpenAPI document as HTML, with all operations by tag."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlencode

from anyio.to_thread import run_sync
from jinja2 import Environment
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ortet.server.openapi import JSON, Json, build_document
from ortet.web.request import html, theme_of

_MAX_SAMPLE_DEPTH = 4
_UNLIMITED = 2**53  # limits from here on are not shown
_CODE = re.compile(r"`([^`]+)`")
_SAMPLES: Json = {"string": "text", "integer": 1, "number": 1.0, "boolean": True, "null": None}


class ApiField(NamedTuple):
    """One parameter, or one key of an object."""

    name: str
    place: str
    shape: Markup
    required: bool
    text: str


class ApiOperation(NamedTuple):
    """One operation of the API."""

    id: str
    method: str
    path: str
    summary: str
    text: list[str]
    needs: str
    fields: list[ApiField]
    body: Markup
    answers: list[tuple[str, str, Markup]]
    curl: str


class ApiReferencePage:
    """The page, rendered at its first request. It is the same for all callers."""

    def __init__(self, templates: Environment) -> None:
        self._templates = templates
        self._rendered_by_theme: dict[str, str] = {}

    def routes(self) -> list[Route]:
        return [Route("/docs", self._page, name="reference")]

    async def _page(self, request: Request) -> Response:
        theme = theme_of(request)
        if theme not in self._rendered_by_theme:
            self._rendered_by_theme[theme] = await run_sync(self._render, theme)
        return html(self._rendered_by_theme[theme])

    def _render(self, theme: str) -> str:
        data = build_document()
        nouns = [
            (tag["name"], tag["description"], list(_entries(data, tag["name"])))
            for tag in data["tags"]
        ]
        schemas = [
            (name, schema.get("description", ""), list(_keys(schema)))
            for name, schema in data["components"]["schemas"].items()
        ]
        return self._templates.get_template("reference.html").render(
            info=data["info"], nouns=nouns, schemas=schemas, theme=theme, who=None, said=prose_html
        )


def _entries(data: Json, tag: str) -> Iterator[ApiOperation]:
    for path, methods in data["paths"].items():
        for method, operation in methods.items():
            if tag in operation["tags"]:
                yield _api_operation(data, path, method.upper(), operation)


def _api_operation(data: Json, path: str, method: str, operation: Json) -> ApiOperation:
    parameters = [_dereference(data, one) for one in operation.get("parameters", [])]
    answers = []
    for status, response in operation["responses"].items():
        resolved = _dereference(data, response)
        shapes = [_body_text(media, part) for media, part in resolved.get("content", {}).items()]
        answers.append((status, resolved["description"], Markup(", ").join(shapes)))
    content = operation.get("requestBody", {}).get("content", {})
    needs = operation["security"][0]["bearer"][0] if operation["security"] else ""
    return ApiOperation(
        id=operation["operationId"],
        method=method,
        path=path,
        summary=operation["summary"],
        text=operation.get("description", "").split("\n\n"),
        needs=needs,
        fields=[
            ApiField(
                one["name"],
                one["in"],
                _type_text(one["schema"]),
                one.get("required", False),
                one.get("description", ""),
            )
            for one in parameters
        ],
        body=Markup(" or ").join(_body_text(media, part) for media, part in content.items()),
        answers=answers,
        curl=_curl(data, path, method, operation, parameters),
    )


def _dereference(data: Json, value: Json) -> Json:
    """Resolve a reference within the document."""
    while "$ref" in value:
        node: Any = data
        for step in value["$ref"].removeprefix("#/").split("/"):
            node = node[step]
        value = node
    return value


def _body_text(media: str, part: Json) -> Markup:
    schema = part.get("schema", {})
    if media != JSON:
        return Markup("<code>{}</code>").format(media)
    if "$ref" in schema or "properties" not in schema:
        return _type_text(schema)
    keys = [
        Markup("{}: {}").format(name, _type_text(one)) for name, one in schema["properties"].items()
    ]
    return Markup("{{ {} }}").format(Markup(", ").join(keys))


def _keys(schema: Json) -> Iterator[ApiField]:
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        yield ApiField(name, "", _type_text(field), name in required, field.get("description", ""))


def _type_text(schema: Json) -> Markup:
    """Return a short description of a type. A named type is a link."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return Markup('<a href="#schema-{0}">{0}</a>').format(name)
    if "anyOf" in schema:
        return Markup(" or ").join(map(_type_text, schema["anyOf"]))
    if "enum" in schema:
        return Markup(" | ").join(Markup("<code>{}</code>").format(one) for one in schema["enum"])
    kind = schema.get("type", "anything")
    if kind == "array":
        if isinstance(schema.get("items", True), dict):
            return Markup("list of {}").format(_type_text(schema["items"]))
        return Markup("list of ({})").format(
            Markup(", ").join(map(_type_text, schema.get("prefixItems", ())))
        )
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return Markup("object of {}").format(_type_text(schema["additionalProperties"]))
    limits = [
        f"{word} {schema[key]:,}"
        for key, word in (
            ("minimum", "from"),
            ("exclusiveMinimum", "above"),
            ("maximum", "to"),
            ("minLength", "at least"),
            ("maxLength", "at most"),
        )
        if key in schema and schema[key] < _UNLIMITED
    ]
    if schema.get("default") not in (None, "", [], {}):
        limits.append(f"else {json.dumps(schema['default'])}")
    return Markup(" ").join([escape(kind), *map(escape, limits)])


def _curl(data: Json, path: str, method: str, operation: Json, parameters: list[Json]) -> str:
    """Return a curl command. Words in capitals must be filled in."""
    place = re.sub(r"{([^}]*)}", lambda found: found[1].upper(), path)
    wanted = {
        one["name"]: _sample(data, one["schema"])
        for one in parameters
        if one["in"] == "query" and one.get("required")
    }
    query = f"?{urlencode(wanted, True)}" if wanted else ""
    words = ["curl"]
    if operation.get("operationId") == "terminal":
        words = ["websocat"]
    elif method != "GET":
        words.append(f"-X {method}")
    elif "text/event-stream" in operation["responses"].get("200", {}).get("content", {}):
        words.append("-N")
    if operation["security"]:
        words.append('-H "Authorization: Bearer $ORTET_TOKEN"')
    content = operation.get("requestBody", {}).get("content", {})
    if JSON in content:
        body = json.dumps(_sample(data, content[JSON]["schema"]))
        words += ["--json " + "'" + body.replace("'", "'\\''") + "'"]
    elif content:
        words.append("--data-binary @FILE")
    return " ".join([*words, f'"$ORTET_URL{place}{query}"'])


def _sample(data: Json, schema: Json, depth: int = 0) -> Any:
    """Return the smallest value that fits a schema."""
    schema = _dereference(data, schema)
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return _sample(data, schema["anyOf"][0], depth)
    kind = schema.get("type", "string")
    if kind == "array":
        few = schema.get("minItems", 0) and depth < _MAX_SAMPLE_DEPTH
        return [_sample(data, schema.get("items", {}), depth + 1)] if few else []
    if kind == "object":
        keys = schema.get("required", ()) if depth < _MAX_SAMPLE_DEPTH else ()
        return {name: _sample(data, schema["properties"][name], depth + 1) for name in keys}
    return _SAMPLES[kind]


def prose_html(text: str) -> Markup:
    """Return text as HTML, with `code` in code elements."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))
