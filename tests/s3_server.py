"""A real S3 server for tests, and a proxy in front of it that fails as it is told."""

from __future__ import annotations

import datetime
import hashlib
import hmac
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

WAIT = 120.0
KEY, SECRET, REGION = "test-key", "test-secret", "us-east-1"
ENVIRON = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": REGION}
_PORTS = ("master", "volume", "filer", "s3")


@contextmanager
def s3_server(directory: Path) -> Iterator[str]:
    """The address of a SeaweedFS that keeps its data in a directory, ended with the block."""
    for _ in range(5):  # another process may take one of the ports in between
        with _started(directory) as address:
            if address is not None:
                yield address
                return
    pytest.fail("weed server did not start: " + (directory / "log").read_text()[-2000:])


@contextmanager
def _started(directory: Path) -> Iterator[str | None]:
    program = Path(sys.executable).with_name("weed")
    config = {"accessKey": KEY, "secretKey": SECRET}
    identity = {"name": "tests", "credentials": [config], "actions": ["Admin"]}
    (directory / "s3.json").write_text(json.dumps({"identities": [identity]}))
    (directory / "data").mkdir(exist_ok=True)
    ports = free_ports(2 * len(_PORTS))
    argv = [str(program), "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3"]
    argv += [f"-dir={directory}/data", f"-s3.config={directory}/s3.json", "-volume.max=100"]
    argv += ["-master.telemetry=false", "-master.volumeSizeLimitMB=64", "-volume.preStopSeconds=0"]
    argv += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.autoCreateBucket=false"]
    argv += [f"-filer.localSocket={directory}/f.sock", f"-s3.localSocket={directory}/s.sock"]
    for number, name in enumerate(_PORTS):
        argv += [f"-{name}.port={ports[2 * number]}", f"-{name}.port.grpc={ports[2 * number + 1]}"]
    address = f"http://127.0.0.1:{ports[-2]}"
    with open(directory / "log", "ab") as log:
        server = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    (directory / "pid").write_text(str(server.pid))
    try:
        yield address if _is_up(server, address) else None
    finally:
        server.kill()
        server.wait(WAIT)


def _is_up(server: subprocess.Popen[bytes], address: str) -> bool:
    deadline = time.monotonic() + WAIT
    while server.poll() is None and time.monotonic() < deadline:
        with suppress(OSError):
            make_bucket(address, "ready")
            return True
        time.sleep(0.1)
    return False


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Below those that a system gives to who asks for any: hardly anybody takes one of them until
    it is used."""
    for _ in range(100):
        ports = random.SystemRandom().sample(range(20_000, 32_000), count)
        with suppress(OSError), ExitStack() as sockets:
            for port in ports:
                sockets.enter_context(socket.socket()).bind((host, port))
            return ports
    raise AssertionError("no port is free")


def make_bucket(address: str, name: str) -> None:
    """Signed as S3 wants it, since obstore makes no buckets."""
    now = datetime.datetime.now(datetime.UTC)
    moment, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    host, empty = address.removeprefix("http://"), hashlib.sha256(b"").hexdigest()
    names = "host;x-amz-content-sha256;x-amz-date"
    asked = f"PUT\n/{name}\n\nhost:{host}\nx-amz-content-sha256:{empty}\nx-amz-date:{moment}\n\n"
    digest = hashlib.sha256(f"{asked}{names}\n{empty}".encode()).hexdigest()
    scope = f"{day}/{REGION}/s3/aws4_request"
    key = f"AWS4{SECRET}".encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), "sha256").digest()
    text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{digest}"
    signature = hmac.new(key, text.encode(), "sha256").hexdigest()
    signed = f"AWS4-HMAC-SHA256 Credential={KEY}/{scope}, SignedHeaders={names}, "
    headers = {"x-amz-date": moment, "x-amz-content-sha256": empty}
    headers["Authorization"] = f"{signed}Signature={signature}"
    request = urllib.request.Request(f"{address}/{name}", method="PUT", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=WAIT):
            pass
    except urllib.error.HTTPError as error:
        with error:
            if error.code != 409:  # it is there
                raise


Fault = Callable[["Relay"], bool]
"""What to do with a request instead of passing it on; whether it did."""


class Proxy:
    """Passes requests on, unless one of `faults` takes them: each takes one, then it is gone. When
    there is none left it is for `always`."""

    def __init__(self, upstream: str, relay: type[Relay] | None = None) -> None:
        self.upstream = upstream.removeprefix("http://")
        self.faults: list[Fault] = []
        self.always: Fault = passes
        self.seen: list[str] = []
        self.lock = threading.Lock()
        self.over = threading.Event()
        proxy = self

        class Handler(relay or Relay):  # type: ignore[misc]
            owner = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._server.shutdown()
        self._thread.join(WAIT)
        self._server.server_close()

    def take(self, relay: Relay) -> bool:
        with self.lock:
            self.seen.append(relay.command)
            faults = self.faults  # which a test may replace meanwhile
            fault = faults.pop(0) if faults else None
        return (fault or self.always)(relay)


class Relay(BaseHTTPRequestHandler):
    owner: Proxy
    protocol_version = "HTTP/1.1"
    body = b""

    def _relay(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if not self.owner.take(self):
            self.answer(*self.ask())

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _relay  # noqa: N815

    def ask(self) -> tuple[int, list[tuple[str, str]], bytes]:
        """What the real server says."""
        connection = http.client.HTTPConnection(self.owner.upstream, timeout=WAIT)
        try:
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(self.body or None)
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            connection.close()

    def answer(
        self, status: int, headers: list[tuple[str, str]], body: bytes, cut: int | None = None
    ) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        length = {name.lower(): value for name, value in headers}.get("content-length", "0")
        self.send_header("content-length", length if self.command == "HEAD" else str(len(body)))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(body[:cut])

    def hang_up(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


def fails(status: int, code: str) -> Fault:
    """Nothing is done, and the answer is an error."""

    def fault(relay: Relay) -> bool:
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode()
        relay.answer(status, [("content-type", "application/xml")], body)
        return True

    return fault


def loses_answer(relay: Relay) -> bool:
    """It is done, and nobody is told."""
    relay.ask()
    relay.hang_up()
    return True


def loses_request(relay: Relay) -> bool:
    """It is not done, and nobody is told."""
    relay.hang_up()
    return True


def stalls(relay: Relay) -> bool:
    """Half of the answer comes, and then nothing."""
    status, headers, body = relay.ask()
    relay.answer(status, headers, body, len(body) // 2)
    relay.owner.over.wait(WAIT)
    relay.hang_up()
    return True


def breaks_off(relay: Relay) -> bool:
    """Half of the answer comes, and then the end."""
    status, headers, body = relay.ask()
    relay.answer(status, headers, body, len(body) // 2)
    relay.hang_up()
    return True


def takes_nothing(relay: Relay) -> bool:
    """Reading works, and no object is made."""
    return relay.command == "PUT" and fails(503, "SlowDown")(relay)


def passes(relay: Relay) -> bool:
    del relay
    return False


def set_environ(patch: pytest.MonkeyPatch) -> None:
    """Credentials of the server, and none of whoever runs the tests."""
    for name in os.environ:
        if name.startswith("AWS_"):
            patch.delenv(name)
    for name, value in ENVIRON.items():
        patch.setenv(name, value)
