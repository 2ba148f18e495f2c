"""Probe of the environment of a workspace, as its machine sees it.

It reads packages, variables, hosts, resolver and repository. It takes some milliseconds, so it does
not run at every commit by default.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping

from ortet.journal.environment import DebianPackages, Environment, PythonPackages
from ortet.sessions.environment.git_state import read_git_state
from ortet.sessions.environment.rooted import ProbeTarget, RootedReader
from ortet.sessions.environment.variables import changed_variables

_LOCKS = ("package-lock.json", "npm-shrinkwrap.json", "pnpm-lock.yaml", "yarn.lock", "bun.lock")
_LOCAL = frozenset(
    {
        "localhost",
        "localhost.localdomain",
        "localhost4",
        "localhost4.localdomain4",
        "localhost6",
        "localhost6.localdomain6",
        "ip6-localhost",
        "ip6-loopback",
        "ip6-localnet",
        "ip6-mcastprefix",
        "ip6-allnodes",
        "ip6-allrouters",
        "ip6-allhosts",
        "broadcasthost",
    }
)
_MAX_LINES, _MAX_PACKAGES = 200, 5000
_MAX_LINE_LENGTH = 1000
_DIST = re.compile(r"(?P<name>[^-]+)-(?P<version>[^-]+?)(?:-py[\d.]+)?\.(?:dist|egg)-info\Z")


def probe_environment(
    target: ProbeTarget,
    environ: Mapping[str, str],
    opening: Mapping[str, str],
    *,
    names: Iterable[str] = (),
    process_environ: Mapping[str, str] | None = None,
) -> Environment:
    """Return the environment for commands that see `environ`.

    Args:
        target: the workspace.
        environ: the variables that commands see.
        opening: the environment at the start of this process; only differences are recorded.
        names: further variables to record.
        process_environ: the environment of this process, if `environ` is another. Programs on the
            host use only this one, since anyone may have written `environ`.
    """
    machine, work = RootedReader(target.root), target.workspace_path
    return Environment(
        python=_python(machine, work, environ.get("VIRTUAL_ENV", "")),
        npm=_npm(machine, work) if work else "",
        debian=_debian(machine),
        variables=changed_variables(environ, opening, names),
        hosts=_hosts(machine),
        resolver=_resolver(machine),
        git=read_git_state(machine, target, environ if process_environ is None else process_environ)
        if work
        else None,
    )


def _python(machine: RootedReader, work: str, active: str) -> PythonPackages | None:
    """Return the packages of the virtual environment in the workspace, or of the active one."""
    for place in (f"{work}/.venv" if work else "", active):
        config = machine.text(f"{place}/pyvenv.cfg") if place else ""
        if config:
            break
    else:
        return None
    version = re.search(r"^version(?:_info)?\s*=\s*(\S+)", config, re.MULTILINE)
    packages: dict[str, str] = {}
    for lib in machine.names(f"{place}/lib"):
        if lib.startswith(("python", "pypy")):
            for name in machine.names(f"{place}/lib/{lib}/site-packages"):
                if dist := _DIST.match(name):
                    normal = re.sub(r"[-_.]+", "-", dist["name"]).lower()
                    packages[_storable(normal)] = _storable(dist["version"])
    few = dict(sorted(packages.items())[:_MAX_PACKAGES])
    return PythonPackages(version.group(1) if version else "", few)


def _npm(machine: RootedReader, work: str) -> str:
    for name in _LOCKS:
        content = machine.read(f"{work}/{name}", max_bytes=64 << 20)
        if content is not None:
            return hashlib.sha256(content).hexdigest()
    return ""


def _debian(machine: RootedReader) -> DebianPackages | None:
    content = machine.read("/var/lib/dpkg/status", max_bytes=64 << 20)
    if content is None:
        return None
    count = content.count(b"\nPackage: ") + content.startswith(b"Package: ")
    return DebianPackages(hashlib.sha256(content).hexdigest(), count)


def _hosts(machine: RootedReader) -> list[str]:
    """Return added host entries: names that are not local and not this host's own."""
    own = os.uname().nodename.lower()
    found = []
    for line in machine.text("/etc/hosts").splitlines():
        words = line.partition("#")[0].split()
        names = {name.lower() for name in words[1:]}
        ours = {name for name in names if name == own or name.partition(".")[0] == own}
        if names - _LOCAL - ours:
            found.append(" ".join(words)[:_MAX_LINE_LENGTH])
    return found[:_MAX_LINES]


def _resolver(machine: RootedReader) -> list[str]:
    lines = (" ".join(line.split()) for line in machine.text("/etc/resolv.conf").splitlines())
    return [
        line[:_MAX_LINE_LENGTH] for line in lines if line.startswith(("nameserver ", "search "))
    ][:_MAX_LINES]


def _storable(text: str) -> str:
    """Return text that can be stored: names and values of the system may be any bytes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
