"""Compatibility of hosts: what dumped processes depend on, and why another host cannot run them."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Collection, Iterable
from pathlib import Path

import msgspec

from ortet.errors import Conflict
from ortet.history.records import Processes

_CPUINFO = Path("/proc/cpuinfo")
_PROGRAM_CPU_FEATURES = re.compile(
    r"fpu|fxsr|mmx\w*|3dnow\w*|(s|ss)se\w*|pni|avx\w*|amx_\w+|fma4?|f16c|aes|vaes|sha\w*|sm[34]|gfni"
    r"|v?pclmulqdq|adx|bmi[12]|abm|tbm|xop|lwp|popcnt|movbe|movdir\w*|cx8|cx16|cmov|erms|fsrm|fs[rz]\w+"
    r"|rdrand|rdseed|rdpid|rdtscp|tsc|lahf_lm|clflush\w*|clwb|clzero|cldemote|rtm|hle|xsave\w*|xgetbv1"
    r"|pku|ospke|fsgsbase|serialize|waitpkg|enqcmd|user_shstk|prefetchw\w*|3dnowprefetch|cmpccxadd|apx\w*"
)
"""CPU features that programs can use. All others concern the kernel or the virtual machine."""


class HostProfile(msgspec.Struct, frozen=True):
    """The properties of a host that dumped processes depend on.

    `version` is the CRIU version. `cpu` holds sorted CPU feature names, empty if unknown.
    """

    version: str
    kernel: str
    arch: str
    page_size: int
    cpu: list[str]


class HostMismatch(msgspec.Struct, frozen=True):
    """A reason why a host cannot run dumped processes: arch, page_size, kernel, cpu or criu."""

    kind: str
    text: str


def this_host(version: str) -> HostProfile:
    """Return the profile of this host, with the given CRIU version."""
    text = _CPUINFO.read_text(errors="replace") if _CPUINFO.exists() else ""
    return HostProfile(
        version=version,
        kernel=platform.release(),
        arch=platform.machine(),
        page_size=os.sysconf("SC_PAGE_SIZE"),
        cpu=cpu_features(text, platform.machine()),
    )


def cpu_features(cpuinfo: str, arch: str) -> list[str]:
    """Return the CPU features that programs can use, from the first processor in /proc/cpuinfo."""
    match = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    names = set(match[1].split()) if match else set[str]()
    if arch in ("x86_64", "i686"):
        names = {name for name in names if _PROGRAM_CPU_FEATURES.fullmatch(name)}
    return sorted(names)


def check_host(processes: Processes, host: HostProfile) -> list[HostMismatch]:
    """Return the reasons why a host cannot run dumped processes, most important first.

    An empty list means that it can. A different kernel is always a reason, whether older or newer:
    a dump holds kernel state, and CRIU gives no guarantee across kernel versions.
    """
    reasons: list[HostMismatch] = []

    def differ(kind: str, what: str, theirs: object, ours: object) -> None:
        reasons.append(HostMismatch(kind, f"{what} is {ours} here and was {theirs}"))

    if processes.arch != host.arch:
        differ("arch", "the processor architecture", processes.arch, host.arch)
        return reasons
    if processes.page_size != host.page_size:
        differ("page_size", "the size of a memory page", processes.page_size, host.page_size)
    if _version_numbers(processes.kernel)[:2] != _version_numbers(host.kernel)[:2]:
        differ("kernel", "the Linux kernel", processes.kernel, host.kernel)
    missing = _missing(processes.cpu, host.cpu)
    if missing:
        reasons.append(HostMismatch("cpu", f"the processor here lacks {', '.join(missing)}"))
    if _version_numbers(processes.version) > _version_numbers(host.version):
        differ("criu", "the version of CRIU", processes.version, host.version or "unknown")
    return reasons


def require_compatible_host(record: Processes, host: HostProfile) -> None:
    """Raise Conflict("other_host") if this host cannot run the dumped processes."""
    reasons = [one.text for one in check_host(record, host)]
    if reasons:
        raise Conflict(
            "other_host",
            "these processes cannot go on here: " + "; ".join(reasons) + ". Restore the files "
            "alone with only={'files'}, or on a host like the one that made the commit",
            reasons=reasons,
        )


def require_same_workspace_path(mounts: Collection[str], workspace_path: str) -> None:
    """Raise Conflict("other_place") if the processes had their workspace at another path.

    Programs know the workspace by its path. Elsewhere they would use files of another machine.
    """
    if workspace_path not in mounts:
        raise Conflict(
            "other_place",
            "the processes of this commit had their workspace in another directory than "
            f"{workspace_path}: "
            "restore the files alone with only={'files'} (`--only files`), or go on in a machine "
            "of that directory",
        )


def _missing(wanted: Iterable[str], available: Iterable[str]) -> list[str]:
    return sorted(set(wanted).difference(available))


def _version_numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
