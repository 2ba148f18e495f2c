"""StoreContext: the services of an open store, which all code below the hub takes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path

import msgspec

from ortet._util.codec import decode
from ortet.backends.base import Bucket, Cache, Catalog, Signal
from ortet.errors import NotFound
from ortet.history import records
from ortet.history.commits import History
from ortet.history.refs import Refs
from ortet.history.tree.tree import Trees
from ortet.ids import Clock, Oid, Random, to_hex, uuid7
from ortet.objects.store import PackedObjectStore
from ortet.vault.keys import Keyring
from ortet.vault.redaction import SecretFilter
from ortet.vault.vault import Vault

REPLAY_VARIABLE, REPLAY_REPORT_VARIABLE = "ORTET_REPLAY", "ORTET_REPLAY_REPORT"


class ReplayRequest(msgspec.Struct, frozen=True):
    """A request by `ortet replay` to replay this session when a program opens it.

    `report` is the file to which the outcome is written.
    """

    session: str
    report: Path


def read_replay_request(environ: Mapping[str, str]) -> ReplayRequest | None:
    """Read the replay request that `ortet replay` passes to its program in the environment."""
    session, report = environ.get(REPLAY_VARIABLE), environ.get(REPLAY_REPORT_VARIABLE)
    return ReplayRequest(session, Path(report)) if session and report else None


class StoreContext:
    """The services of an open store.

    `ortet.config` chooses the implementation of each service. Sessions, workspaces and the verbs of
    the hub share one context.

    Attributes:
        url: Address of the store. Other processes open the store with it.
        root: Local directory: the whole store, or a cache and the machines.
        catalog: Rows, heads, leases and events.
        bucket: Sealed packs and bundles.
        signal: Wake-ups between processes.
        cache: Working memory.
        objects: Content-addressed objects.
        trees: Directory trees in the object store.
        clock: Source of time.
        random: Source of random bytes.
        author: Author of commits and events.
        host: Id of this host.
        environ: Environment of this process; later changes are visible.
        initial_environ: Copy of the environment from when the store was opened.
        history: Commits and their states.
        refs: Branches, tags and reflogs.
        secrets: Known secrets, which no commit may contain.
        allows_lease_handover: True in a server: it releases a session when another process
            requests it.
    """

    def __init__(
        self,
        *,
        url: str,
        root: Path,
        catalog: Catalog,
        bucket: Bucket,
        signal: Signal,
        cache: Cache,
        objects: PackedObjectStore,
        trees: Trees,
        clock: Clock,
        random: Random,
        author: str,
        host: str,
        environ: Mapping[str, str],
        keyring: Keyring,
    ) -> None:
        self.url = url
        self.root = root
        self.catalog = catalog
        self.bucket = bucket
        self.signal = signal
        self.cache = cache
        self.objects = objects
        self.trees = trees
        self.clock = clock
        self.random = random
        self.author = author
        self.host = host
        self.environ = environ
        self.initial_environ = dict(environ)
        self.history = History(objects)
        self.refs = Refs(catalog, objects, objects.find_by_prefix)
        self.allows_lease_handover = False
        self._keyring = keyring
        self._epoch = objects.epoch

    @cached_property
    def vault(self) -> Vault:
        """Encrypted secrets by name. They are never part of a commit."""
        return Vault(self.catalog, self._keyring, clock=self.clock, random=self.random)

    @cached_property
    def secrets(self) -> SecretFilter:
        """Known secrets of the vault and of the environment."""
        return SecretFilter(self.catalog, lambda: self.vault, self.environ, self.clock)

    @property
    def is_shared(self) -> bool:
        """True if other hosts may have the store open, so that `root` is only a cache."""
        return self.url != str(self.root)

    def new_id(self) -> str:
        """Return a new time-ordered unique id."""
        return uuid7(self.clock, self.random)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Guard a write: no sweep deletes an object from the first put until the head has moved.

        If the block raises, the objects written in it are abandoned.
        """
        with self.objects.writing() as epoch:
            if epoch != self._epoch:  # a sweep ran since; cached tree pages may be deleted
                self.trees.clear_cache()
                self._epoch = epoch
            self.objects.scanner = self.secrets.scanner()
            try:
                yield
            except BaseException:
                self.objects.abandon()
                raise

    def image_oid(self, commit: Oid, default: bytes = b"") -> Oid:
        """Return the oid of the machine image in a commit.

        If the commit has no files, return `default`, or raise NotFound("no_files") if `default` is
        empty.
        """
        found = self.history.state(commit).machine or default
        if not found:
            raise NotFound("no_files", f"commit {to_hex(commit)[:12]} holds no files")
        return Oid(found)

    def read_image(self, oid: Oid) -> records.Image:
        """Read an image record from the object store."""
        return decode(records.Image, self.objects.get(oid))

    def notify(self, topic: str) -> None:
        """Wake processes that wait for changes of a topic."""
        with suppress(OSError):  # only a hint: the change itself is already stored
            self.signal.notify(topic)

    def is_local_host(self, host: str) -> bool:
        """Return True if a recorded host name means this host.

        Some sessions of earlier releases have no host name. They count as local.
        """
        return host in ("", self.host)


def host_id() -> str:
    """Return an id that distinguishes this host from other hosts of the same store."""
    from ortet._util.codec import checksum

    try:
        machine = Path("/etc/machine-id").read_text()
    except OSError:
        machine = ""
    return checksum(f"{machine}\n{os.uname().nodename}".encode()).hex()


def default_author() -> str:
    """Return USER@HOST, the author if no setting names one."""
    import pwd

    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a uid without a user name, common in containers
        name = str(os.getuid())
    return f"{name}@{os.uname().nodename}"
