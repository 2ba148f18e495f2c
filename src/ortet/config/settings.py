"""What `config.toml` in a store's directory may say; config.py reads it."""

from __future__ import annotations

from typing import Annotated

import msgspec

Size = Annotated[int, msgspec.Meta(ge=0)]
PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Rate = Annotated[float, msgspec.Meta(ge=0)]


class ServeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[serve]`: limits of `ortet serve`, whose options go before it; and where swarms may run."""

    body: PositiveInt = 16  # MiB of a request that is JSON
    frame: PositiveInt = 1  # MiB of what a WebSocket sends at once
    headers: PositiveInt = 64  # KiB of a request's line and headers
    header_seconds: Seconds = 10.0  # in which they must have come
    body_seconds: Seconds = 30.0  # the same of a body that is JSON
    idle_seconds: Seconds = 75.0  # that a connection is kept without a request
    rate: Rate = 1000.0  # requests a second of a token; 0: any
    burst: PositiveInt = 2000  # that may come at once
    unknown_rate: Rate = 20.0  # of an address, without a valid token
    requests: PositiveInt = 1024  # at once
    requests_each: PositiveInt = 512  # at once, of one token
    streams: PositiveInt = 2000  # live streams and terminals
    connections: PositiveInt = 4096
    threads: PositiveInt = 32  # that work at once
    sessions: PositiveInt = 512  # open at once, of one tenant
    linger: Seconds = 10.0  # that a session stays open which nobody uses
    patience: Seconds = 5.0  # that a request waits for a busy session
    grace: Seconds = 10.0  # that requests have to end when the server stops
    debug: bool = False  # the log tells of probes, too
    ray: str = ""  # the cluster that swarms may ask for: ray, or ray://HOST:PORT; else none


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of it. Sizes in MiB."""

    quota: Size | None = None
    reserve: Size = 64
    key_file: str | None = None
    author: str | None = None
    embedder: str | None = None  # as "wordllama"; see docs/guide/memory.md
    watch: bool = True
    agent_idle: Size = 900  # seconds after which the host agent ends by itself
    serve: ServeSettings = ServeSettings()
