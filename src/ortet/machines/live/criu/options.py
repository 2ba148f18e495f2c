"""The options of CRIU's requests: those of every request, of a dump, and of a restore.

The field numbers are those of `criu_opts` in CRIU's rpc.proto. To set another option, add its
number to `_OPTION_FIELDS`, and its value to `_COMMON_OPTIONS`, `dump_options` or `restore_options`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ortet.machines.live.criu.protobuf import encode_field

_OPTION_FIELDS = {
    "images_dir_fd": 1,
    "pid": 2,
    "leave_running": 3,
    "tcp_established": 5,
    "shell_job": 7,
    "file_locks": 8,
    "log_level": 9,
    "log_file": 10,
    "notify_scripts": 12,
    "root": 13,
    "work_dir_fd": 17,
    "link_remap": 18,
    "force_irmap": 21,
    "rst_sibling": 26,
    "inherit_fd": 27,
    "manage_cgroups_mode": 34,
    "ghost_limit": 35,
    "irmap_scan_paths": 36,
    "external": 37,
    "lazy_pages": 48,
    "network_lock": 64,
}
_NETWORK_LOCK_SKIP = 3  # value of network_lock: no other machine uses this network
# size limit for a deleted file that is still open and stored in the image
_MAX_GHOST_FILE_BYTES = 1 << 30

_COMMON_OPTIONS = {
    "log_level": 2,
    "tcp_established": 1,
    "shell_job": 1,
    "file_locks": 1,
    "link_remap": 1,
    "manage_cgroups_mode": 0,
    "ghost_limit": _MAX_GHOST_FILE_BYTES,
    "network_lock": _NETWORK_LOCK_SKIP,
}

OptionValue = int | str | bytes


def common_options(images_fd: int, work_fd: int, log_file: str) -> bytes:
    """Return the options of every request. CRIU writes `log_file` in the work directory."""
    options: dict[str, OptionValue] = {
        "images_dir_fd": images_fd,
        "work_dir_fd": work_fd,
        "log_file": log_file,
        **_COMMON_OPTIONS,
    }
    return _encode_options(options)


def dump_options(
    pid: int, *, external: Sequence[str], watched: Sequence[str], leave_running: bool
) -> bytes:
    """Return the options of a dump; see `CriuWorker.dump` for the parameters."""
    options: dict[str, OptionValue] = {
        "pid": pid,
        "leave_running": int(leave_running),
        "notify_scripts": 1,
    }
    if watched:
        options["force_irmap"] = 1
    return _encode_options(options, external, watched)


def restore_options(
    root: Path, *, external: Sequence[str], network_fd: int, lazy_pages: bool, notify: bool
) -> bytes:
    """Return the options of a restore.

    `notify`: CRIU announces when everything is restored, and waits for an answer. See
    `CriuWorker.restore` for the other parameters.
    """
    options: dict[str, OptionValue] = {
        "root": str(root),
        "rst_sibling": 1,
        "inherit_fd": encode_field(1, "extnet") + encode_field(2, network_fd),
    }
    if lazy_pages:
        options["lazy_pages"] = 1
    if notify:
        options["notify_scripts"] = 1
    return _encode_options(options, external)


def _encode_options(
    options: Mapping[str, OptionValue], external: Sequence[str] = (), watched: Sequence[str] = ()
) -> bytes:
    fields = [(_OPTION_FIELDS[name], value) for name, value in options.items()]
    fields += [(_OPTION_FIELDS["external"], name) for name in external]
    fields += [(_OPTION_FIELDS["irmap_scan_paths"], path) for path in watched]
    return b"".join(encode_field(number, value) for number, value in fields)
