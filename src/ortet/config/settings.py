"""The fields of `config.toml` in the directory of a store, which `open_store.read_settings` reads.

A module of its own, so that the settings are found in one place and have no dependencies.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

Size = Annotated[int, msgspec.Meta(ge=0)]
PositiveInt = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Rate = Annotated[float, msgspec.Meta(ge=0)]


class ServeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The section `[serve]`: limits of `ortet serve`, and the Ray cluster for swarms.

    Command line options override these values.
    """

    body: PositiveInt = 16  # MiB of a JSON request
    frame: PositiveInt = 1  # MiB of one WebSocket message
    headers: PositiveInt = 64  # KiB of the request line and headers
    header_seconds: Seconds = 10.0  # time limit for receiving them
    body_seconds: Seconds = 30.0  # time limit for receiving a JSON body
    idle_seconds: Seconds = 75.0  # time limit of a connection without a request
    rate: Rate = 1000.0  # requests per second of a token; 0: no limit
    burst: PositiveInt = 2000  # requests of a token that may come at once
    unknown_rate: Rate = 20.0  # requests per second of an address without a valid token
    requests: PositiveInt = 1024  # concurrent requests
    requests_each: PositiveInt = 512  # concurrent requests of one token
    streams: PositiveInt = 2000  # concurrent live streams and terminals
    connections: PositiveInt = 4096
    threads: PositiveInt = 32  # worker threads
    sessions: PositiveInt = 512  # open sessions of one tenant
    linger: Seconds = 10.0  # time that an unused session stays open
    patience: Seconds = 5.0  # time that a request waits for a busy session
    grace: Seconds = 10.0  # time for running requests to finish when the server stops
    debug: bool = False  # also log probes
    ray: str = ""  # Ray cluster that swarms may use: ray, or ray://HOST:PORT; "": none


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings of a store. Sizes are in MiB."""

    quota: Size | None = None
    reserve: Size = 64
    key_file: str | None = None
    author: str | None = None
    embedder: str | None = None  # such as "wordllama"; see docs/guide/memory.md
    watch: bool = True
    agent_idle: Size = 900  # seconds without use after which the host agent ends
    serve: ServeSettings = ServeSettings()
