"""Maps paths to operations.

A lookup takes time in the length of the path, not in the number of routes. The module also has
Starlette routes whose parameters may contain %2F.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple
from urllib.parse import unquote

from starlette.convertors import Convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route, WebSocketRoute
from starlette.types import Scope

Endpoint = Callable[[Request], Awaitable[Response]]


class RouteMatch(NamedTuple):
    """The endpoint of a request, its declared path and the values of its path parameters."""

    endpoint: Endpoint
    route: str
    path_params: dict[str, str]


class _RouteNode:
    def __init__(self) -> None:
        self.literal_children: dict[str, _RouteNode] = {}
        self.parameter_child: _RouteNode | None = None
        self.endpoints: dict[str, tuple[Endpoint, str, tuple[str, ...]]] = {}


class EventNumberConvertor(Convertor[int]):
    """A number in a path, limited to the 18 digits that an event number may have.

    Longer digit strings do not match: Python refuses to convert very long ones.
    """

    regex = "[0-9]{1,18}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


class RawPathRoute(Route):
    """A route whose path parameters may contain %2F."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return _match_raw_path(super().matches, scope)


class RawPathWebSocketRoute(WebSocketRoute):
    """A WebSocket route whose path parameters may contain %2F."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return _match_raw_path(super().matches, scope)


def _match_raw_path(
    matches: Callable[[Scope], tuple[Match, Scope]], scope: Scope
) -> tuple[Match, Scope]:
    raw: bytes = scope.get("raw_path") or b""
    if b"%2f" not in raw.lower():
        return matches(scope)
    match, child = matches({**scope, "path": raw.decode("latin-1")})
    if match is not Match.NONE:
        named = child["path_params"].items()
        child["path_params"] = {
            name: unquote(value) if isinstance(value, str) else value for name, value in named
        }
    return match, child


class RouteTable:
    """A prefix tree of paths. A literal part wins over a parameter.

    Paths with converters (`{name:path}`) are not in the table; Starlette routes serve them.
    """

    def __init__(self, lines: Iterable[tuple[str, str, Endpoint]]) -> None:
        self._root = _RouteNode()
        for method, path, endpoint in lines:
            if ":" not in path:
                self._add(method, path, endpoint)

    def _add(self, method: str, path: str, endpoint: Endpoint) -> None:
        node, names = self._root, []
        for part in path.split("/")[1:]:
            if part.startswith("{") and part.endswith("}"):
                names.append(part[1:-1])
                node.parameter_child = node.parameter_child or _RouteNode()
                node = node.parameter_child
            else:
                node = node.literal_children.setdefault(part, _RouteNode())
        node.endpoints[method] = (endpoint, path, tuple(names))

    def find(self, method: str, raw_path: bytes) -> RouteMatch | None:
        """Return the match for a method and a path, or None.

        The raw path is split before it is decoded, so that a parameter may contain %2F.
        """
        parts = raw_path.decode("latin-1").split("/")[1:]
        entry = self._walk(self._root, parts, 0, [], method)
        if entry is None:
            return None
        (endpoint, route, names), values = entry
        return RouteMatch(endpoint, route, dict(zip(names, map(unquote, values), strict=True)))

    def _walk(
        self, node: _RouteNode, parts: list[str], depth: int, values: list[str], method: str
    ) -> tuple[Any, list[str]] | None:
        if depth == len(parts):
            end = node.endpoints.get(method)
            return (end, values) if end is not None else None
        part = parts[depth]
        next_ = node.literal_children.get(part)
        if next_ is not None:
            entry = self._walk(next_, parts, depth + 1, values, method)
            if entry is not None:
                return entry
        if node.parameter_child is not None and part:
            return self._walk(node.parameter_child, parts, depth + 1, [*values, part], method)
        return None
