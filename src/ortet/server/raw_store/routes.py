"""Routes for the raw store: catalog, signal and hello, one route per method.

The `grant` function authenticates. Access covers the whole store of a tenant, including erased and
unreachable objects that are not yet collected. A token that is limited to some agents must not get
access.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import anyio
from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ortet._util.codec import FORMAT_VERSION
from ortet.backends.base import Signal
from ortet.backends.remote.protocol import (
    CONTENT_TYPE,
    DONE_HEADER,
    EPOCH_HEADER,
    ONCE_ONLY_WRITES,
    PROTOCOL_VERSION,
    READS,
    REQUEST_HEADER,
    RETRY_HEADER,
    TIME_HEADER,
    WRITES,
    Hello,
    SignalToken,
    SignalWaitRequest,
    TopicsRequest,
    method_schema,
    pack,
)
from ortet.errors import Conflict, Invalid, NotFound, OrtetError
from ortet.server.dispatch import BODY_TIMEOUT_SECONDS
from ortet.server.raw_store import write_once
from ortet.server.raw_store.bucket import bucket_routes
from ortet.server.raw_store.rawaccess import (
    Grant,
    RawStoreAccess,
    parse_call,
    raw_error_response,
    read_call_body,
    respond_in_thread,
)

_MAX_WAITERS = 256
"""Maximum number of requests that wait for a signal. Others are answered "not yet"."""


def raw_routes(grant: Grant, timeout: float = BODY_TIMEOUT_SECONDS) -> list[Route]:
    """Return the routes below /raw.

    Args:
        grant: Authenticates a request and returns its store.
        timeout: Seconds in which some part of a body must arrive.
    """
    raw = _RawStoreRoutes(grant, timeout)
    return [
        Route("/raw/hello", raw.hello, methods=["GET"]),
        Route("/raw/catalog/{method}", raw.catalog, methods=["POST"]),
        Route("/raw/signal/{verb}", raw.signal, methods=["POST"]),
        *bucket_routes(grant, timeout),
    ]


class _RawStoreRoutes:
    def __init__(self, grant: Grant, timeout: float) -> None:
        self._grant = grant
        self._timeout = timeout
        self._boot = write_once.new_boot()
        self._waiters: anyio.CapacityLimiter | None = None

    async def hello(self, request: Request) -> Response:
        def work() -> Response:
            access = self._grant(request, "read")
            objects = access.objects
            hello = Hello(
                version=PROTOCOL_VERSION,
                store=write_once.store_id(access.catalog),
                format=FORMAT_VERSION,
                key_id=objects.hasher.key_id,
                epoch=objects.sweep_lock.epoch(),
                boot=self._boot,
            )
            return Response(pack(hello), media_type=CONTENT_TYPE)

        return await respond_in_thread(work)

    # Catalog

    async def catalog(self, request: Request) -> Response:
        try:
            body = await read_call_body(request, self._grant, self._timeout)
        except OrtetError as error:
            return raw_error_response(error)
        return await respond_in_thread(partial(self._catalog, request, body))

    def _catalog(self, request: Request, body: bytes) -> Response:
        name = request.path_params["method"]
        access = self._grant(request, "write" if name in WRITES else "read")
        if name not in READS and name not in WRITES:
            raise NotFound("no_method", f"a catalog has no {name!r}: upgrade the server")
        args = parse_call(method_schema(name).args_type, body)
        values = {field: getattr(args, field) for field in args.__struct_fields__}
        if name in ONCE_ONLY_WRITES:
            answer = _write(access, name, values, request)
        else:
            try:
                answer = getattr(access.catalog, name)(**values)
            except OverflowError as error:
                raise Invalid(
                    "bad_call", "a number is larger than a store can hold: give a smaller one"
                ) from error
        headers = {
            EPOCH_HEADER: str(access.objects.sweep_lock.epoch()),
            TIME_HEADER: str(access.clock.now_ns()),
        }
        return Response(pack(answer), media_type=CONTENT_TYPE, headers=headers)

    # Signal

    async def signal(self, request: Request) -> Response:
        verb = request.path_params["verb"]
        try:
            body = await read_call_body(request, self._grant, self._timeout)
            if verb == "wait":
                signal = (await run_sync(self._grant, request, "read")).signal
                return await self._wait(signal, parse_call(SignalWaitRequest, body))
        except OrtetError as error:
            return raw_error_response(error)
        return await respond_in_thread(partial(self._signal, request, verb, body))

    def _signal(self, request: Request, verb: str, body: bytes) -> Response:
        signal = self._grant(request, "write" if verb == "notify" else "read").signal
        if verb not in ("notify", "token"):
            raise NotFound("no_method", f"a signal has no {verb!r}: upgrade the server")
        topics = parse_call(TopicsRequest, body).topics
        if verb == "token":
            if len(topics) != 1:
                raise Invalid("bad_call", "a token is that of one topic: give one")
            return Response(
                pack(SignalToken(self._boot, signal.token(topics[0]))), media_type=CONTENT_TYPE
            )
        for topic in topics:
            signal.notify(topic)
        return Response(pack(None), media_type=CONTENT_TYPE)

    async def _wait(self, signal: Signal, wait_request: SignalWaitRequest) -> Response:
        """Wait for a signal in separate threads, so that waiting requests block no others."""
        if self._waiters is None:
            self._waiters = anyio.CapacityLimiter(_MAX_WAITERS)
        timeout = (
            wait_request.timeout if wait_request.timeout > 0 else 0.0
        )  # also if it is not a number
        if wait_request.mark.boot != self._boot:
            has_changed = (
                True  # the token was given by another process, so that signals may have been missed
            )
        elif self._waiters.available_tokens < 1:
            await anyio.sleep(min(timeout, 1.0))
            has_changed = False
        else:
            wait = partial(
                signal.wait, wait_request.topic, wait_request.mark.token, min(timeout, 60.0)
            )
            has_changed = await run_sync(wait, limiter=self._waiters)
        return Response(pack(has_changed), media_type=CONTENT_TYPE)


def _write(access: RawStoreAccess, name: str, values: dict[str, Any], request: Request) -> Any:
    """Apply a write once, and only if no garbage collection began since the client read the store.

    Raises:
        Conflict: `swept`, if one began. Nothing was written.
    """
    headers = request.headers
    seen_epoch = headers.get(EPOCH_HEADER)
    sweep_lock = access.objects.sweep_lock
    write_request = write_once.WriteRequest(
        request=headers.get(REQUEST_HEADER, ""),
        again=headers.get(RETRY_HEADER) == "1",
        done=[one for one in headers.get(DONE_HEADER, "").split(",") if one],
        now=access.clock.now_ns(),
    )
    if seen_epoch is None:
        return write_once.write(access.catalog, name, values, write_request)
    pid, epoch = os.getpid(), sweep_lock.begin_write()
    try:
        if seen_epoch != str(epoch) and not write_once.was_done(
            access.catalog, name, values, write_request
        ):
            raise Conflict(
                "swept",
                "the store was swept while this was being written: nothing was, repeat the call",
                epoch=epoch,
            )
        return write_once.write(access.catalog, name, values, write_request)
    finally:
        sweep_lock.end_write(pid)
