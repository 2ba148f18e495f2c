"""Chooses where the attempts of a swarm run: on this host, or on the nodes of a Ray cluster."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import msgspec

from ortet._util.validation import NUMBER, require
from ortet.errors import Invalid, Unsupported

if TYPE_CHECKING:
    from ortet.hub.hub import Hub

_RAY, RAY_CLIENT_SCHEME, _AUTO = "ray", "ray://", "auto"

CPU, GPU, MEMORY = "cpu", "gpu", "memory"


class RayClusterSpec(msgspec.Struct, frozen=True):
    """A Ray cluster, and the resources that an attempt needs.

    `address` is "auto" for the cluster of this host. `needs` has processors, bytes of memory, and
    custom resources of the nodes.
    """

    address: str
    needs: dict[str, float]

    @property
    def ray_options(self) -> dict[str, Any]:
        """Return the needs as options of a Ray task."""
        rest = dict(self.needs)
        options: dict[str, Any] = {"num_cpus": rest.pop(CPU), "num_gpus": rest.pop(GPU, 0)}
        if memory := rest.pop(MEMORY, 0):
            options["memory"] = int(memory)
        return {**options, "resources": rest}

    @property
    def node_resources(self) -> dict[str, float]:
        """Return the needs under the names of Ray's node resources."""
        names = {CPU: "CPU", GPU: "GPU"}
        return {names.get(name, name): amount for name, amount in self.needs.items()}


def parse_cluster(on: Any, needs: Any) -> RayClusterSpec | None:
    """Parse the parameters on= and needs=. None: run on this host.

    Raise Unsupported("extra_missing") if Ray is not installed.
    """
    if on is None:
        if needs is not None:
            raise Invalid("bad_needs", "needs= chooses nodes of a cluster: give on='ray', too")
        return None
    if on == _RAY:
        address = _AUTO
    elif (
        isinstance(on, str)
        and on.startswith(RAY_CLIENT_SCHEME)
        and len(on) > len(RAY_CLIENT_SCHEME)
    ):
        address = on
    else:
        raise Invalid(
            "bad_place",
            f"on={on!r}: give 'ray' for the cluster that this host is a node of, or the address of "
            "one, as 'ray://HOST:10001'; nothing for this host",
        )
    if find_spec("ray") is None or find_spec("cloudpickle") is None:
        raise Unsupported("extra_missing", 'a swarm on Ray needs it: pip install "ortet[ray]"')
    return RayClusterSpec(address, _parse_needs(needs))


def ray_worker_config(hub: Hub, on: RayClusterSpec, timeout: float | None) -> dict[str, Any]:
    """Return the configuration of the Ray server. `host` is set if only one host has the store."""
    embedded = hub.url == str(hub.root)
    return {
        "cluster": {"address": _cluster_address(on), "needs": on.needs},
        "timeout": timeout,
        "root": hub.url,
        "host": hub.store.host if embedded else "",
        "once": True,
        "version": ortet_version(),
    }


def ortet_version() -> str:
    """Return the version of ortet. Imported late, because the package imports the configuration."""
    return str(import_module("ortet").__version__)


def _cluster_address(on: RayClusterSpec) -> str:
    """Return the address of the cluster. A cluster that this process has joined is preferred."""
    ray = sys.modules.get("ray")
    if on.address == _AUTO and ray is not None and ray.is_initialized():
        return str(ray.get_runtime_context().gcs_address)
    return on.address


def _parse_needs(needs: Any) -> dict[str, float]:
    if needs is None:
        return {CPU: 1.0}
    if not isinstance(needs, Mapping) or not all(isinstance(name, str) and name for name in needs):
        raise Invalid(
            "bad_needs", f"needs={needs!r}: give a dict such as {{'cpu': 2, 'memory': 4 * 2**30}}"
        )
    require(NUMBER, **{f"needs[{name!r}]": amount for name, amount in needs.items()})
    amounts = {name: float(amount) for name, amount in needs.items() if amount or name == CPU}
    return {CPU: 1.0, **amounts}
