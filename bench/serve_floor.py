"""serve_floor.py: the least that an HTTP server in Python does: a route of Starlette under uvicorn
that reads JSON, does nothing in a thread, and answers. Its address goes to standard output."""

from __future__ import annotations

import asyncio
import json
import socket

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

ANSWER = json.dumps({"seq": 1, "kind": "message", "text": "x" * 200}).encode()


def work(body: bytes) -> bytes:
    json.loads(body)
    return ANSWER


async def answer(request: Request) -> Response:
    found = await asyncio.to_thread(work, await request.body())
    return Response(found, 201, media_type="application/json")


def main() -> None:
    # the protocol is named, or asyncio would not send small answers at once
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.bind(("127.0.0.1", 0))
    app = Starlette(routes=[Route("/messages", answer, methods=["POST"])])
    config = uvicorn.Config(app, loop="asyncio", http="httptools", lifespan="off", log_config=None)
    host, port = bound.getsockname()
    print(json.dumps({"url": f"http://{host}:{port}"}), flush=True)
    bound.listen(2048)
    uvicorn.Server(config).run(sockets=[bound])


if __name__ == "__main__":
    main()
