"""Which host directories a machine covers, binds and hides, told from a mount table."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from ortet.errors import Unsupported
from ortet.machines.base import MachineSpec
from ortet.machines.overlay.mount_plan import (
    HostMount,
    HostOverlay,
    MountStep,
    dirs_to_overlay,
    is_within,
    mount_steps,
    parse_mounts,
)

TABLE = rb"""22 27 0:21 / /proc rw,relatime - proc proc rw
23 27 0:22 / /sys rw,relatime - sysfs sysfs rw
24 27 0:6 / /dev rw,relatime - devtmpfs devtmpfs rw
25 24 0:23 / /dev/shm rw - tmpfs tmpfs rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
28 27 0:25 / /mnt/with\040blank ro,nosuid - tmpfs none ro
29 27 0:26 / /data rw - tmpfs hidden rw
30 27 254:1 / /data rw,relatime - xfs /dev/vdb rw
"""


@pytest.fixture
def spec(place: Path) -> MachineSpec:
    (place / "work").mkdir()
    return MachineSpec(id="m", home=place / "home", path=place / "work", scope="host")


def cover(
    at: str, place: Path, *, state: bool = True, layers: tuple[Path, ...] = ()
) -> HostOverlay:
    return HostOverlay(at, state, place / "upper", place / "workdir", layers)


def at(made: list[MountStep], do: str) -> list[str]:
    return [step["at"] for step in made if step["do"] == do]


def test_the_mount_table_is_read_with_its_escapes() -> None:
    found = {mounted.at: mounted for mounted in parse_mounts(TABLE)}
    assert found["/mnt/with blank"] == HostMount("/mnt/with blank", "tmpfs", True)
    assert found["/data"].kind == "xfs"  # the later mount hides the earlier
    assert found["/"] == HostMount("/", "ext4", False)


def test_the_real_table_can_be_read() -> None:
    found = parse_mounts(Path("/proc/self/mountinfo").read_bytes())
    assert "/" in {mounted.at for mounted in found}


def test_a_host_scope_covers_disks_only(spec: MachineSpec) -> None:
    host = [
        HostMount("/", "ext4"),
        HostMount("/proc", "proc"),
        HostMount("/dev", "devtmpfs"),
        HostMount("/dev/shm", "tmpfs"),
        HostMount("/etc", "xfs"),
        HostMount("/usr", "xfs", True),
        HostMount("/tmp", "tmpfs"),
        HostMount("/etc/hostname", "ext4"),
        HostMount(str(spec.path), "ext4"),
    ]
    assert dirs_to_overlay(spec, host) == [("/", True), ("/etc", True), ("/tmp", False)]


def test_a_workspace_scope_covers_the_writable_places_without_keeping_them(
    spec: MachineSpec,
) -> None:
    found = dirs_to_overlay(replace(spec, scope="workspace"), [])
    assert ("/tmp", False) in found
    assert not any(state for _, state in found)
    assert not any(
        is_within(one, [other]) for one, _ in found for other, _ in found if one != other
    )


def test_other_mounts_are_bound_read_only(spec: MachineSpec, place: Path) -> None:
    host = [HostMount("/", "ext4"), HostMount("/etc", "ext4", True), HostMount("/nowhere", "ext4")]
    made = mount_steps(spec, host, [cover("/", place)], area=place, rootless=False)
    bound = {step["at"]: step for step in made if step["do"] == "bind"}
    assert bound["/etc"]["sealed"] and bound["/sys"]["sealed"] and "sealed" not in bound["/dev"]
    assert "/nowhere" not in bound


def test_mounts_below_a_covered_directory_show_again(spec: MachineSpec, place: Path) -> None:
    inner = str(place / "other")
    host = [
        HostMount("/", "ext4"),
        HostMount(inner, "tmpfs"),
        HostMount(str(spec.path / "x"), "tmpfs"),
    ]
    narrow = replace(spec, scope="workspace")
    made = mount_steps(
        narrow, host, [cover("/tmp", place, state=False)], area=place, rootless=False
    )
    assert inner in at(made, "bind")
    assert str(spec.path / "x") not in at(made, "bind")


def test_layers_lie_on_an_overlay_of_the_directory(spec: MachineSpec, place: Path) -> None:
    layered = cover("/", place, layers=(place / "layer",))
    made = mount_steps(spec, [HostMount("/", "ext4")], [layered], area=place, rootless=False)
    first, second = (step for step in made if step["do"] == "overlay")
    assert first["host"] and "upperdir" not in first["options"]
    assert second["options"].startswith(f"lowerdir={place}/layer:{first['at']},")


def test_existing_hidden_places_outside_the_workspace_are_hidden(
    spec: MachineSpec, place: Path
) -> None:
    (place / "secret").mkdir()
    (place / "token").write_text("t")
    (place / "link").symlink_to("secret")
    (spec.path / "inside").mkdir()
    hide = ("secret", "token", "missing", "work/inside", "link")
    asked = replace(spec, hide=(*(place / name for name in hide), place))
    made = mount_steps(
        asked, [HostMount("/", "ext4")], [cover("/", place)], area=place, rootless=False
    )
    hidden = [(step["at"], step["directory"]) for step in made if step["do"] == "hide"]
    assert hidden == [
        (str(place / "secret"), True),
        (str(place / "token"), False),
        (str(place / "secret"), True),
    ]


def test_a_workspace_path_missing_on_the_host_needs_an_overlay_above_it(
    spec: MachineSpec, place: Path
) -> None:
    lost = replace(spec, path=Path("/ortet-no-such-directory/work"), scope="workspace")
    with pytest.raises(Unsupported) as caught:
        mount_steps(lost, [], [cover("/tmp", place, state=False)], area=place, rootless=True)
    assert caught.value.kind == "no_place"
    assert not os.path.exists("/ortet-no-such-directory")
    made = mount_steps(
        replace(lost, scope="host"), [], [cover("/", place)], area=place, rootless=False
    )
    assert at(made, "mkdir") == [str(lost.path)]


def test_is_within_compares_whole_path_components() -> None:
    assert is_within("/a/b", ["/a"]) and is_within("/a", ["/a"]) and is_within("/x", ["/"])
    assert not is_within("/ab", ["/a"]) and not is_within("/a", ["/a/b"])
