"""Files that pages need, read once: scripts, styles, pictures.

Their address holds a hash of all of them, so that browsers keep them for ever and never have some
of one release and some of another. A name is looked up among those there are, never on the disk.
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
"""Where scripts/xterm puts what is not ours, if it was run."""
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
    def __init__(self, directory: Path = STATIC_DIRECTORY, vendor: Path = VENDOR_DIRECTORY) -> None:
        self._files: dict[str, _StaticFile] = {}
        whole = sha256()
        found = [(path, path.relative_to(directory).as_posix()) for path in directory.rglob("*")]
        found += [(path, f"vendor/{path.name}") for path in vendor.glob("*")]
        for path, name in sorted(found, key=lambda one: one[1]):
            media = _MEDIA.get(path.suffix)
            if media is not None and path.is_file():
                data = path.read_bytes()
                whole.update(f"{name}\n{len(data)}\n".encode() + data)
                self._files[name] = _StaticFile(data, media, f'"{sha256(data).hexdigest()[:32]}"')
        self.version = whole.hexdigest()[:12]

    def has(self, name: str) -> bool:
        return name in self._files

    def address(self, name: str) -> str:
        """Of a file that must be there."""
        if name not in self._files:
            raise KeyError(name)
        return f"/static/{self.version}/{name}"

    async def answer(self, request: Request) -> Response:
        """GET /static/{version}/{name}: what a page of another release asks for is not kept."""
        found = self._files.get(request.path_params["name"])
        if found is None:
            return error_response(
                NotFound("no_route", "there is no such file: load the page again")
            )
        now = request.path_params["version"] == self.version
        headers = {"etag": found.tag, "cache-control": _IMMUTABLE_CACHE if now else "no-cache"}
        if found.tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(found.data, media_type=found.media, headers=headers)
