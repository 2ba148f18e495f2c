"""Static files of the pages, read once at start: scripts, styles, pictures.

The address contains a hash of all files. Browsers can cache them forever, and never mix two
releases. A requested name is looked up in memory, never on disk.
"""

from __future__ import annotations

import sys
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from ortet.errors import NotFound
from ortet.server.errors import error_response

STATIC_DIRECTORY = Path(__file__).parent / "static"
VENDOR_DIRECTORY = Path(sys.prefix) / "share" / "ortet-page"
"""Directory of third-party files, which scripts/xterm installs if it was run."""
_MEDIA = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_IMMUTABLE_CACHE = "public, max-age=31536000, immutable"


class _StaticFile(NamedTuple):
    data: bytes
    media: str
    tag: str


class StaticAssets:
    """All static files in memory. `version` is a hash of them."""

    def __init__(self, directory: Path = STATIC_DIRECTORY, vendor: Path = VENDOR_DIRECTORY) -> None:
        self._files: dict[str, _StaticFile] = {}
        whole = sha256()
        paths = [(path, path.relative_to(directory).as_posix()) for path in directory.rglob("*")]
        paths += [(path, f"vendor/{path.name}") for path in vendor.glob("*")]
        for path, name in sorted(paths, key=lambda one: one[1]):
            media = _MEDIA.get(path.suffix)
            if media is not None and path.is_file():
                data = path.read_bytes()
                whole.update(f"{name}\n{len(data)}\n".encode() + data)
                self._files[name] = _StaticFile(data, media, f'"{sha256(data).hexdigest()[:32]}"')
        self.version = whole.hexdigest()[:12]

    def has(self, name: str) -> bool:
        return name in self._files

    def address(self, name: str) -> str:
        """Return the address of a file. Raises KeyError if there is no such file."""
        if name not in self._files:
            raise KeyError(name)
        return f"/static/{self.version}/{name}"

    async def answer(self, request: Request) -> Response:
        """Answer GET /static/{version}/{name}. Files of another version are not cached."""
        file = self._files.get(request.path_params["name"])
        if file is None:
            return error_response(
                NotFound("no_route", "the file does not exist: load the page again")
            )
        is_current = request.path_params["version"] == self.version
        headers = {
            "etag": file.tag,
            "cache-control": _IMMUTABLE_CACHE if is_current else "no-cache",
        }
        if file.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(file.data, media_type=file.media, headers=headers)
