"""Asking the user, through a client that can, before something is thrown away or overwritten.

The rule: a confirmed tool first tells what it would do. It does so only when that was agreed to: by
the flag at start, by the user whom the client asks, or, where a client cannot ask, by a second call
that names exactly the commit or fact that the first one showed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from ortet.errors import Refused
from ortet.mcp_server.tool import Confirmation, ToolResult, valid_utf8

_KEY = "confirm"
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        _KEY: {"type": "boolean", "title": "Do it", "description": "Do what is described above."}
    },
    "required": [_KEY],
}

_Context = ServerRequestContext[Any, Any]
ConfirmedCall = Callable[[Confirmation], Awaitable[ToolResult]]


def can_ask(ctx: _Context) -> bool:
    """Whether the client can put a question to its user."""
    capabilities = ctx.session.client_capabilities
    elicitation = capabilities.elicitation if capabilities is not None else None
    if elicitation is None:
        return False
    # before 2025-11-25 there was only one way, which had no name
    return elicitation.form is not None or elicitation.url is None


async def call_confirmed(
    ctx: _Context, params: types.CallToolRequestParams, call: ConfirmedCall
) -> ToolResult | types.InputRequiredResult:
    """Do it if the user agrees; Refused("not_confirmed") if not."""
    modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
    reply = (params.input_responses or {}).get(_KEY) if modern else None
    if reply is not None and params.request_state:
        _check_reply(reply)
        preview = await call(Confirmation(params.request_state))
        if getattr(preview, "done", False):
            return preview
    else:
        preview = await call(Confirmation())
    # what was agreed to is not what would be done any more, or nobody was asked yet
    what: str = getattr(preview, "confirm", "")
    question = types.ElicitRequestFormParams(
        message=valid_utf8(_question(str(preview))), requested_schema=_SCHEMA
    )
    if modern:
        return types.InputRequiredResult(
            input_requests={_KEY: types.ElicitRequest(params=question)}, request_state=what
        )
    _check_reply(
        await ctx.session.elicit_form(
            question.message, question.requested_schema, related_request_id=ctx.request_id
        )
    )
    return await call(Confirmation(what))


def _question(preview: str) -> str:
    """The report without what a model is told to do with it."""
    return preview.rpartition("\nnothing was done.")[0] or preview


def _check_reply(reply: Any) -> None:
    content = getattr(reply, "content", None) or {}
    if getattr(reply, "action", "") != "accept" or content.get(_KEY) is not True:
        raise Refused(
            "not_confirmed",
            "the user did not agree, and nothing was changed: ask them what they want instead",
        )
