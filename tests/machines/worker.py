"""A process of its own for tests: other user ids, armed faults, kill -9.

worker.py UID STORE VERB ARGS...; UID is `-` to stay root. Prints one JSON line. All is imported
before the user id changes, for the interpreter may lie where that user cannot read.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from ortet._util.codec import Hasher, decode, encode
from ortet.backends.local.bucket import FileBucket
from ortet.errors import OrtetError
from ortet.history.records import Image
from ortet.history.tree.tree import Trees
from ortet.ids import SystemClock, from_hex, to_hex
from ortet.machines.base import Report
from ortet.machines.capture.ignore_rules import IgnoreRules
from ortet.machines.capture.scanner import scan
from ortet.machines.capture.stat_index import StatIndex
from ortet.machines.restore.checkout import checkout_image
from ortet.machines.restore.restore import recover_restore, restore_directory
from ortet.objects.base import Kind
from ortet.objects.store import PackedObjectStore


class Worker:
    def __init__(self, store: Path) -> None:
        self.objects = PackedObjectStore(
            store, FileBucket(store / "bucket"), hasher=Hasher(), clock=SystemClock()
        )
        self.trees = Trees(self.objects)

    def image(self, oid: str) -> Image:
        return decode(Image, self.objects.get(from_hex(oid)))

    def freeze(self, root: Path, index: StatIndex | None = None) -> Image:
        found = scan(
            self.objects,
            self.trees,
            root=root,
            index=index or StatIndex(self.trees),
            rules=IgnoreRules(),
            losses=[],
        )
        return Image(found.root, found.links)

    def put(self, image: Image) -> str:
        oid = to_hex(self.objects.put(Kind.IMAGE, encode(image)))
        self.objects.flush()
        return oid


def perform(worker: Worker, verb: str, args: list[str]) -> object:
    if verb == "freeze":
        return worker.put(worker.freeze(Path(args[0])))
    if verb == "materialise":
        root, index = Path(args[1]), StatIndex(worker.trees)
        image = worker.image(args[0])
        report = checkout_image(worker.objects, worker.trees, image, root, index=index)
    elif verb == "thaw":
        root = Path(args[1])
        index = StatIndex.load(root.with_name("index"), worker.trees) or StatIndex(worker.trees)
        report = restore_directory(
            worker.objects,
            worker.trees,
            root,
            worker.freeze(root, index),
            worker.image(args[0]),
            index=index,
            stage=Path(args[2]),
        )
    else:
        return recover_restore(Path(args[0]))
    again = worker.put(worker.freeze(root, index))
    if os.access(root.parent, os.W_OK):
        index.save(root.with_name("index"), from_hex(again))
    return {**told(report), "again": again}


def told(report: Report) -> dict[str, object]:
    losses = [[loss.path, loss.what] for loss in report.losses]
    return {"written": report.written, "removed": report.removed, "losses": losses}


def main() -> None:
    user, store, verb, *args = sys.argv[1:]
    if user != "-":
        os.setgroups([])
        os.setgid(int(user))
        os.setuid(int(user))
    try:
        print(json.dumps(perform(Worker(Path(store)), verb, args)))  # noqa: T201
    except OrtetError as error:
        print(json.dumps(error.as_dict()))  # noqa: T201
        sys.exit(3)


if __name__ == "__main__":
    main()
