"""The doctor tries things for real, changes nothing, and always names the one thing to change."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.fixtures.machines import Shop

from ortet.ids import SystemClock
from ortet.machines import doctor
from ortet.machines.base import Capability, Engine
from ortet.machines.doctor import probe_host
from ortet.machines.folder import FolderEngine
from ortet.machines.overlay.engine import OverlayEngine
from ortet.machines.overlay.probe import probe_overlay
from ortet.machines.overlay.supervisor_client import Zygote


def by_name(found: list[Capability]) -> dict[str, Capability]:
    return {line.name: line for line in found}


@pytest.mark.root
def test_doctor_needs_no_store_and_creates_none(place: Path) -> None:
    found = by_name(probe_host(place / "not/there"))
    assert {
        "overlay",
        "criu",
        "limits",
        "network",
        "reflink",
        "fsync",
        "disk",
        "watch",
        "sqlite",
    } == found.keys()
    assert found["overlay"] == Capability("overlay", True, "as root")
    assert found["sqlite"].ok and found["disk"].ok
    assert all(line.ok or line.fix for line in found.values())
    assert list(place.iterdir()) == []


def test_doctor_asks_each_engine_for_its_capabilities(shop: Shop) -> None:
    engines: list[Engine] = [
        FolderEngine(shop.objects, shop.trees, SystemClock(), watch=False),
        OverlayEngine(shop.objects, shop.trees, SystemClock(), root=shop.path),
    ]
    found = [line.name for line in probe_host(shop.path, engines)]
    assert found[:2] == ["folder", "overlay"]
    assert found.count("overlay") == 1


def test_a_missing_capability_is_reported_with_its_fix(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "MIN_INOTIFY_WATCHES", 10**12)
    monkeypatch.setattr(doctor, "MIN_FREE_BYTES", 10**18)
    monkeypatch.setattr(doctor, "SLOW_FSYNC_SECONDS", -1.0)
    monkeypatch.setattr(doctor, "MIN_SQLITE_VERSION", (99, 0, 0))
    found = by_name(probe_host(place))
    assert found["watch"].fix == f"sysctl fs.inotify.max_user_watches={10**12}"
    for name in ("disk", "fsync", "sqlite"):
        assert not found[name].ok and found[name].fix


PROBE = """
import sys
from pathlib import Path
from ortet.machines.overlay.supervisor_client import Zygote
from ortet.machines.standalone.syscalls import is_privileged
from ortet.machines.overlay.probe import probe_overlay
zygote = Zygote(rootless=not is_privileged())
(found,) = probe_overlay(Path(sys.argv[1]), zygote)
zygote.close()
print(found.ok, found.detail, found.fix, sep="\\n")
"""


def probe_after(script: str, place: Path, *flags: str) -> list[str]:
    """What a probe says in namespaces of its own, after a shell script has spoilt them."""
    done = subprocess.run(
        [
            "unshare",
            *flags,
            "sh",
            "-c",
            f'{script}; exec "$@"',
            "sh",
            sys.executable,
            "-c",
            PROBE,
            str(place),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.root
def test_doctor_reports_a_filesystem_that_cannot_hold_an_upper_directory(place: Path) -> None:
    for name in ("lower", "upper", "work", "store"):
        (place / name).mkdir()
    options = f"lowerdir={place}/lower,upperdir={place}/upper,workdir={place}/work"
    ok, detail, fix = probe_after(
        f"mount -t overlay test -o {options} {place}/store", place / "store", "-m"
    )
    assert (ok, detail[:8]) == ("False", "as root:")
    assert "Invalid argument" in detail
    assert fix.startswith("put the store on ext4")


@pytest.mark.root
def test_doctor_reports_a_host_without_user_namespaces(place: Path) -> None:
    ok, detail, fix = probe_after(
        "echo 0 > /proc/sys/user/max_user_namespaces", place, "-U", "-r", "-m"
    )
    assert (ok, fix) == ("False", "sysctl user.max_user_namespaces=10000")
    assert detail.startswith("in a user namespace: this host lets no ordinary user")


@pytest.mark.root
def test_doctor_reports_an_overlay_in_a_user_namespace(place: Path) -> None:
    ok, detail, fix = probe_after("true", place, "-U", "-r", "-m")
    assert (ok, detail, fix) == ("True", "in a user namespace", "")


def test_doctor_reports_a_missing_directory(place: Path) -> None:
    zygote = Zygote(rootless=False)
    (found,) = probe_overlay(place / "missing", zygote)
    zygote.close()
    assert not found.ok and "missing" in found.detail
