"""Valkey over TCP with a password, and behind TLS: a store's signal and cache."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import os
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.fixtures.postgres import Shared, drop_schema, new_schema, shared
from tests.fixtures.s3 import free_ports
from tests.fixtures.valkey import Server, valkey_server
from tests.fixtures.waiting import WAIT, aeventually, eventually

from ortet.backends.base import Cache
from ortet.backends.pubsub import PubSubSignal
from ortet.backends.valkey.address import parse_valkey_url
from ortet.backends.valkey.cache import ValkeyCache, open_cache
from ortet.backends.valkey.client import ValkeyClient
from ortet.backends.valkey.signal import open_signal
from ortet.config.environment import open_hub
from ortet.errors import Refused

pytestmark = pytest.mark.valkey

PASSWORD = "open sesame: 1/2?"


@contextmanager
def on_tcp(*options: str) -> Iterator[tuple[Server, int]]:
    """A server that listens on a port of the loopback, too: one that nobody took in between."""
    for attempt in range(5):
        (port,) = free_ports(1)
        try:
            with valkey_server("--port", str(port), "--bind", "127.0.0.1", *options) as server:
                yield server, port
                return
        except AssertionError:
            if attempt == 4:
                raise


def password_file(server: Server) -> Path:
    path = server.directory / "password"
    path.write_text(f"{PASSWORD}\n")
    return path


def check_cache(cache: Cache) -> None:
    def is_kept() -> bool:
        cache.put("key", b"value", 60_000_000_000)
        return cache.get("key") == b"value"

    eventually(is_kept, say="the cache stores nothing")


def test_a_cache_and_signal_work_over_tcp_with_a_password() -> None:
    with on_tcp("--requirepass", PASSWORD) as (server, port):
        for scheme in ("redis", "valkey"):
            for url in (
                f"{scheme}://127.0.0.1:{port}?password_file={password_file(server)}",
                f"{scheme}://:{quote(PASSWORD, safe='')}@127.0.0.1:{port}/3",
            ):
                cache = open_cache(url, namespace="space")
                check_cache(cache)
                cache.close()
        signal, other = (open_signal(url, namespace="space") for _ in range(2))
        token = signal.token("topic")
        other.notify("topic")
        assert signal.wait("topic", token, WAIT)
        for one in (signal, other):
            one.close()
        with pytest.raises(Refused) as caught:
            # one that does not answer at once is taken for one that is gone
            eventually(lambda: open_signal(f"redis://127.0.0.1:{port}", namespace="space").close())
        assert caught.value.kind == "login_refused"


class Tls:
    """Speaks TLS on a port, and passes all of it on to a socket of this host."""

    def __init__(self, target: str, directory: Path) -> None:
        self.ca = _certified(directory)
        self._target = target
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(self.ca, directory / "key.pem")
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._ready.wait(WAIT)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(WAIT)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._over = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._met, "127.0.0.1", 0, ssl=self._context)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._over.wait()
        server.close()
        await self._left()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _left(self) -> None:
        """Until those who spoke to it have been seen to go: a loop that ends before leaves their
        connections to be collected, which is an error of whatever test runs then."""
        selector: Any = self._loop._selector  # type: ignore[attr-defined]
        await aeventually(lambda: len(selector.get_map()) <= 1)  # one wakes the loop itself

    async def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there, back = await asyncio.open_unix_connection(self._target)
        try:
            await asyncio.gather(_pass(reader, back), _pass(there, writer))
        finally:
            for end in (back, writer):
                end.close()
            self._tasks.discard(task)


async def _pass(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError, ssl.SSLError):
        while data := await source.read(1 << 16):
            sink.write(data)
            await sink.drain()
    sink.close()


def _certified(directory: Path) -> Path:
    """A certificate of the loopback that signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = directory / "cert.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (directory / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return path


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[tuple[Server, Tls]]:
    with valkey_server("--requirepass", PASSWORD) as server:
        relay = Tls(str(server.socket), tmp_path)
        yield server, relay
        relay.close()


def test_a_cache_works_over_tls_and_rejects_an_unknown_certificate(tls: tuple[Server, Tls]) -> None:
    server, relay = tls
    login = f"password_file={password_file(server)}"
    for scheme in ("rediss", "valkeys"):
        url = f"{scheme}://127.0.0.1:{relay.port}?{login}&ca_file={relay.ca}"
        cache = ValkeyCache(ValkeyClient(parse_valkey_url(url), answer_timeout=WAIT), "space")
        check_cache(cache)
        cache.close()
    stranger = ValkeyClient(
        parse_valkey_url(f"rediss://127.0.0.1:{relay.port}?{login}"), answer_timeout=WAIT
    )
    cache = ValkeyCache(stranger, "space")
    cache.put("key", b"value")  # its certificate is nobody's we know: as a server that is gone
    assert cache.get("key") is None
    assert "certificate" in stranger.last_error.lower()
    cache.close()


def test_the_cache_of_a_store_may_have_a_server_of_its_own(
    postgres: Shared, tmp_path: Path
) -> None:
    schema = new_schema()
    with valkey_server() as one, on_tcp("--requirepass", PASSWORD) as (two, port):
        secret = password_file(two)
        cache = quote(f"valkey://127.0.0.1:{port}?password_file={secret}", safe="")
        store = f"{shared().url()}&bucket=file://{tmp_path}/bucket&schema={schema}"
        environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
        both = f"{store}&signal={quote(one.url, safe='')}&cache={cache}"
        with open_hub(both, environ=environ) as hub:
            assert isinstance(hub.signal, PubSubSignal)
            assert hub.signal.transport_name == "valkey"
            assert isinstance(hub.cache, ValkeyCache)
            check_cache(hub.cache)
            assert one.ask("DBSIZE") == 0
        with open_hub(f"{store}&cache={cache}", environ=environ) as hub:
            assert isinstance(hub.signal, PubSubSignal)
            assert hub.signal.transport_name == "postgres"
            check_cache(hub.cache)
    drop_schema(shared().url(), schema)
