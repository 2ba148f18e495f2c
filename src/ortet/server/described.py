"""Constant parts of the OpenAPI document: errors, headers, security schemes and fixed routes."""

from __future__ import annotations

from typing import Any

from ortet.errors import CODES, OrtetError
from ortet.server.auth.authenticate import COOKIE
from ortet.server.errors import STATUS
from ortet.server.middleware.idempotency import MAX_KEY_LENGTH

Json = dict[str, Any]
JSON = "application/json"

ERRORS = {
    401: "Nobody knows who asks: give a token.",
    403: "The token, a lease, a policy or a budget says no; or a page of another site asks.",
    404: "What is named does not exist, or is not for this token to see.",
    408: "The body did not come in time.",
    409: "The world moved since the caller last looked, a name is that of several, or a key's "
    "request is in progress.",
    412: "The head is not the one that If-Match names: look at what came since.",
    413: "The body is too large, or there is no room for it.",
    422: "The request itself is wrong: the message says what to change.",
    429: "Too many requests of this token or address: wait.",
    431: "The address and the headers are too large.",
    500: "A fault of the server, or stored data that does not match its hash.",
    501: "This host, engine or version cannot do it.",
    503: "Something needed is not there at the moment: the same request may work later.",
}
_RETRY_AFTER_STATUSES = (409, 429, 503)

HEADERS: Json = {
    "ETag": {
        "description": "The head of the session, or the id of the content.",
        "schema": {"type": "string"},
    },
    "Retry-After": {
        "description": "Seconds after which to ask again.",
        "schema": {"type": "integer", "minimum": 0},
    },
    "WWW-Authenticate": {
        "description": "How to say who asks.",
        "schema": {"type": "string"},
    },
    "Content-Range": {
        "description": "Which part it is, of how much.",
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
        "The same request with the same key is done once, and answered the same, for a day.",
        minLength=1,
        maxLength=MAX_KEY_LENGTH,
        pattern="^[ -~]+$",
    ),
    "IfMatch": _header(
        "If-Match", "Only if this is still the head: the ETag of an answer before, or *."
    ),
    "Range": _header("Range", "A part of the content, as bytes=0-1023."),
    "IfNoneMatch": _header("If-None-Match", "The ETag of what the client has: 304 if it is that."),
    "LastEventID": _header(
        "Last-Event-ID", "Go on behind this event; browsers send it when they come again."
    ),
    "ContentDigest": _header("Content-Digest", "What the body must have, as sha-256=:...:"),
}

SECURITY: Json = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token that `ortet access create` made. What an operation needs of it "
        "(read, write, admin) stands with the operation; each includes those before it.",
    },
    "cookie": {
        "type": "apiKey",
        "in": "cookie",
        "name": COOKIE,
        "description": "The same token, as POST /login gives it to a browser.",
    },
}


def error_schema() -> Json:
    """Return the schema of `OrtetError.as_dict`."""
    classes = [*CODES, *STATUS]
    names = {one.name for base in classes for one in (base, *base.__subclasses__())}
    return {
        "title": "Error",
        "description": "The one shape of all errors. `error` says what to do, `kind` which case it "
        "is (kinds are only ever added), `message` what to do next.",
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
    found: Json = {}
    for status, text in ERRORS.items():
        headers = []
        if status == 401:
            headers.append("WWW-Authenticate")
        if status in _RETRY_AFTER_STATUSES:
            headers.append("Retry-After")
        found[f"Error{status}"] = {
            "description": text,
            **response_headers(*headers),
            "content": {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}},
        }
    return found


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
                "healthz", "server", "Whether it is alive.", {"200": _response("ok", "text/plain")}
            )
        },
        "/readyz": {
            "get": _public_operation(
                "readyz",
                "server",
                "Whether it can work: its store can be written, and it is not stopping. Answered "
                "within some two seconds; `parts` of the details names what is not well. A bucket "
                "that does not answer is in `not_well`: journals go on without it.",
                {"200": _response("It can.", JSON, _READY_RESPONSE), **error_refs(503)},
            )
        },
        "/metrics": {
            "get": _public_operation(
                "metrics",
                "server",
                "What it does, in numbers, as Prometheus reads them. No tenant is named.",
                {"200": _response("Text of version 0.0.4.", "text/plain"), **error_refs(403, 503)},
            )
        },
        "/openapi.json": {
            "get": _public_operation(
                "openapi",
                "server",
                "This document.",
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
                "The same for people.",
                {"200": _response("A page.", "text/html"), **error_refs(403, 503)},
            )
        },
        **_login_paths(),
    }


def _login_paths() -> Json:
    see_other = {"description": "A form was sent: on to the page."}
    return {
        "/login": {
            "post": _public_operation(
                "login",
                "access",
                "Give a token once; the browser keeps it from scripts, in a cookie.",
                {
                    "200": _response("Whose token it is.", JSON, _LOGIN_RESPONSE),
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
                "The browser forgets the cookie; the token stays valid.",
                {
                    "204": {"description": "Forgotten."},
                    "303": see_other,
                    **error_refs(403, 503),
                },
            )
        },
    }
