"""What a machine sees: the mounts that make its view, step by step, for its supervisor.

A view is built below an empty directory and then becomes the machine's root. What is private, what
is read-only and why: docs/decisions/0005-what-an-overlay-machine-sees.md.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PosixPath
from typing import Any

import msgspec

from ortet.errors import Unsupported
from ortet.machines.base import Spec
from ortet.machines.standalone.syscalls import overlay_options

Step = dict[str, Any]

NOISE = ("/dev", "/proc", "/run", "/sys", "/tmp", "/var/tmp")
"""Never state: temporary by convention, or no files at all."""

# No places for files: in a machine they are what the host has, read-only.
# fmt: off
_PSEUDO = frozenset((
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts",
    "devtmpfs", "efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore",
    "rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs",
))
# fmt: on
_VOLATILE = frozenset(("tmpfs", "ramfs"))
_OWN = ("/dev", "/proc", "/sys")  # made or bound as a whole
_ESCAPED = re.compile(rb"\\([0-7]{3})")


class Mounted(msgspec.Struct, frozen=True):
    """A mount of the host."""

    at: str
    kind: str
    read_only: bool = False


class Cover(msgspec.Struct, frozen=True):
    """A host directory that shows through an overlay: what is written there stays in `upper`."""

    at: str
    state: bool  # and is part of the image
    upper: Path
    work: Path
    layers: tuple[Path, ...] = ()  # system differences between the host and `upper`


class View(PosixPath):
    """A path into a machine's mounts.

    It leads through a link whose text is "/": resolved, it would name the host's own files.
    """

    def resolve(self, strict: bool = False) -> View:  # noqa: ARG002 - as Path has it
        return self


def parse_mounts(text: bytes) -> list[Mounted]:
    """/proc/self/mountinfo in order; of several at one place the last, which hides the others."""
    found: dict[str, Mounted] = {}
    for line in text.splitlines():
        fields = line.split(b" ")
        at = os.fsdecode(_ESCAPED.sub(lambda match: bytes([int(match[1], 8)]), fields[4]))
        kind = fields[fields.index(b"-") + 1].decode()
        found.pop(at, None)
        found[at] = Mounted(at, kind, b"ro" in fields[5].split(b","))
    return list(found.values())


def places_to_cover(spec: Spec, host: Sequence[Mounted]) -> list[tuple[str, bool]]:
    """(directory, is it state) for each overlay but the workspace's own, parents first."""
    if spec.scope == "host":
        return [
            (mounted.at, mounted.kind not in _VOLATILE and not within(mounted.at, NOISE))
            for mounted in host
            if _takes_files(mounted) and not within(mounted.at, (str(spec.path), *_OWN))
        ]
    wanted = ["/tmp", "/var/tmp", _home_directory()]
    places = sorted({os.path.realpath(place) for place in wanted if os.path.isdir(place)})
    own = str(spec.path)
    kept = [place for place in places if place != "/" and not within(place, (own,))]
    return [(p, False) for p in kept if not within(p, [q for q in kept if q != p])]


def steps(
    spec: Spec, host: Sequence[Mounted], covers: Sequence[Cover], *, area: Path, user: bool
) -> list[Step]:
    """Everything up to the workspace itself. `area` is a place for mounts that show nowhere."""
    place = str(spec.path)
    _check_place(place, covers)
    made: list[Step] = []
    if spec.scope == "workspace":
        made.append({"do": "bind", "at": "/", "source": "/", "recursive": True, "sealed": True})
    for number, cover in enumerate(covers):
        made += _cover(cover, area / f"under{number}", user=user)
        if spec.scope == "workspace":
            below = [m.at for m in host if m.at != cover.at and within(m.at, (cover.at,))]
            made += [_sealed(at) for at in below if not within(at, (place,))]
    if spec.scope == "host":
        covered = {cover.at for cover in covers}
        rest = [m.at for m in host if m.at not in covered and not within(m.at, (place, *_OWN))]
        made += [_sealed(at) for at in rest if os.path.exists(at)]
        made.append({"do": "bind", "at": "/dev", "source": "/dev", "recursive": True})
        made.append({**_sealed("/sys"), "recursive": True})
    made.append({"do": "hold", "at": "/proc"})
    made += _hides(spec)
    made.append({"do": "proc", "at": "/proc"})
    if os.path.isdir("/dev/shm"):
        made.append({"do": "tmpfs", "at": "/dev/shm", "options": "mode=1777"})
    made.append({"do": "mkdir", "at": place})
    return made


def live_steps(
    spec: Spec, host: Sequence[Mounted], covers: Sequence[Cover], *, area: Path
) -> list[Step]:
    """The same for a machine whose processes are kept: every mount is one that CRIU makes itself,
    or one that can be made again outside and handed to it."""
    place = str(spec.path)
    _check_place(place, covers)
    made: list[Step] = [{"do": "hold", "at": str(area / "hold"), "host": True}]
    for number, cover in enumerate(covers):
        made += _cover(cover, area / f"under{number}", user=False)
    covered = {cover.at for cover in covers}
    rest = [m.at for m in host if m.at not in covered and not within(m.at, (place, *_OWN))]
    made += [_sealed(at) for at in rest if os.path.exists(at)]
    made += _hides(spec)
    made += [{"do": "mkdir", "at": at} for at in ("/dev", "/proc", "/sys", "/run", place)]
    made += [{"do": "devices", "at": "/dev"}, {"do": "devpts", "at": "/dev/pts"}]
    made += [{"do": "sysfs", "at": "/sys"}, {"do": "proc", "at": "/proc"}]
    return made


def within(path: str, places: Iterable[str]) -> bool:
    """Is it one of these, or below one?"""
    return any(path == place or path.startswith(place.rstrip("/") + "/") for place in places)


def _cover(cover: Cover, under: Path, *, user: bool) -> Iterator[Step]:
    lowers = [cover.at]
    if cover.layers:
        # a layer that lies below the directory it is stacked on is refused, so that directory
        # becomes an overlay of its own first: with nothing in it but itself
        yield {"do": "tmpfs", "at": str(under), "options": "mode=700", "host": True}
        for name in ("empty", "view"):
            yield {"do": "mkdir", "at": str(under / name), "host": True}
        options = overlay_options([cover.at, str(under / "empty")])
        yield {"do": "overlay", "at": str(under / "view"), "options": options, "host": True}
        lowers = [*map(str, cover.layers), str(under / "view")]
    extra = ["xino=off", "volatile"]
    extra += ["userxattr"] if user else ["redirect_dir=nofollow", "metacopy=off", "index=off"]
    options = overlay_options(lowers, str(cover.upper), str(cover.work), extra=extra)
    step: Step = {"do": "overlay", "at": cover.at, "options": options}
    if cover.state and cover.at != "/":
        # a filesystem that cannot lie below an overlay
        step["instead"] = {"source": cover.at, "sealed": True}
    elif not cover.state:
        # to a user namespace the kernel refuses what holds mounts of the host
        scratch = within(cover.at, NOISE)
        step["instead"] = {"source": str(cover.upper)} if scratch else {}
    yield step


def _sealed(at: str) -> Step:
    """A mount of the host as it is, but read-only; it may be gone by now."""
    return {"do": "bind", "at": at, "source": at, "sealed": True, "optional": True}


def _hides(spec: Spec) -> Iterator[Step]:
    """Hidden places; not one that holds the workspace, nor one inside it, which was given away."""
    place = str(spec.path)
    for path in map(os.path.realpath, spec.hide):
        if os.path.exists(path) and not within(place, (path,)) and not within(path, (place,)):
            yield {"do": "hide", "at": path, "directory": os.path.isdir(path)}


def _check_place(place: str, covers: Sequence[Cover]) -> None:
    """The workspace's directory is there, or can be made where no host directory is touched."""
    if os.path.isdir(place) or within(place, [cover.at for cover in covers]):
        return
    raise Unsupported(
        "no_place",
        f"{place} is not there and cannot be made inside a machine of scope 'workspace': make this "
        "directory on the host, or use scope='host' as root",
    )


def _takes_files(mounted: Mounted) -> bool:
    writable = mounted.kind not in _PSEUDO and not mounted.read_only
    return mounted.at == "/" or (writable and os.path.isdir(mounted.at))


def _home_directory() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:  # a uid without a name, as containers have
        return "/"
