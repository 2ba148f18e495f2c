"""A host says why it cannot take processes of another."""

from __future__ import annotations

import msgspec
import pytest

from ortet.history.records import Processes
from ortet.machines.host_compat import HostProfile, check_host, cpu_features, this_host

HOST = HostProfile("4.2.1", "6.18.3-x", "x86_64", 4096, ["avx2", "sse2"])


def made(host: HostProfile) -> Processes:
    return Processes("criu", host.version, host.kernel, host.arch, host.page_size, host.cpu, [], [])


def test_a_host_accepts_processes_of_the_same_host() -> None:
    host = this_host("4.2.1")
    assert host.cpu
    assert check_host(made(host), host) == []


@pytest.mark.parametrize(
    ("fields", "kinds"),
    [
        ({"arch": "aarch64", "page_size": 65536}, ["arch"]),
        ({"page_size": 16384}, ["page_size"]),
        ({"kernel": "6.17.3"}, ["kernel"]),
        ({"kernel": "7.18.3"}, ["kernel"]),
        ({"kernel": "6.18.99-other"}, []),
        ({"cpu": ["sse2"]}, ["cpu"]),
        ({"cpu": ["avx2", "avx512f", "sse2"]}, []),
        ({"version": "4.2"}, ["criu"]),
        ({"version": "4.10"}, []),
        ({"version": ""}, ["criu"]),
        ({"kernel": "5.0", "cpu": [], "version": "3.17"}, ["kernel", "cpu", "criu"]),
    ],
)
def test_each_incompatible_host_property_is_reported_as_a_reason(
    fields: dict[str, object], kinds: list[str]
) -> None:
    reasons = check_host(made(HOST), msgspec.structs.replace(HOST, **fields))
    assert [reason.kind for reason in reasons] == kinds


def test_the_reason_names_both_hosts() -> None:
    kernel, cpu = check_host(
        made(HOST), msgspec.structs.replace(HOST, kernel="5.1.0", cpu=["sse2"])
    )
    assert kernel.text == "the Linux kernel is 5.1.0 here and was 6.18.3-x"
    assert cpu.text == "the processor here lacks avx2"


def test_cpu_features_list_only_flags_that_programs_can_use() -> None:
    text = "processor : 0\nflags\t\t: avx2 pti hypervisor sse4_2 ibrs constant_tsc\nflags : fpu\n"
    assert cpu_features(text, "x86_64") == ["avx2", "sse4_2"]
    assert cpu_features("Features\t: fp asimd atomics\n", "aarch64") == ["asimd", "atomics", "fp"]
    assert cpu_features("", "x86_64") == []
