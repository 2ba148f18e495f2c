"""Asks the user to confirm a tool call that discards or overwrites something.

A confirmed tool first reports what it would do. It acts only after one of three confirmations: the
flag at server start, the user's answer to a question of the client, or a second call. The second
call must name exactly the commit or fact that the first one showed; it is for clients that cannot
ask.
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
    """Return True if the client can ask its user a question."""
    capabilities = ctx.session.client_capabilities
    elicitation = capabilities.elicitation if capabilities is not None else None
    if elicitation is None:
        return False
    # Before protocol version 2025-11-25 there was only the form, without a name.
    return elicitation.form is not None or elicitation.url is None


async def call_confirmed(
    ctx: _Context, params: types.CallToolRequestParams, call: ConfirmedCall
) -> ToolResult | types.InputRequiredResult:
    """Run a tool after the user has agreed.

    Raises:
        Refused: `not_confirmed`, if the user did not agree.
    """
    modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
    reply = (params.input_responses or {}).get(_KEY) if modern else None
    if reply is not None and params.request_state:
        _check_reply(reply)
        preview = await call(Confirmation(params.request_state))
        if getattr(preview, "done", False):
            return preview
    else:
        preview = await call(Confirmation())
    # Nobody was asked yet, or the preview changed since the user agreed.
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
    """Return the preview without the instructions for the model."""
    return preview.rpartition("\nnothing was done.")[0] or preview


def _check_reply(reply: Any) -> None:
    content = getattr(reply, "content", None) or {}
    if getattr(reply, "action", "") != "accept" or content.get(_KEY) is not True:
        raise Refused(
            "not_confirmed",
            "the user did not confirm, and nothing was changed: ask the user what to do instead",
        )
