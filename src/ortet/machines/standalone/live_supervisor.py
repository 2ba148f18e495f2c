"""The parent of live machines: forks their pid 1, and CRIU to dump or restore a machine.

Run as `python -I -S live_supervisor.py FD CRIU AREA`, so it may import only the standard library
and its neighbours here. There is one for each hub, and it runs as root. The kernel kills every
process it started when it ends, and it ends with the hub: nothing is left to clean up. A process
tree that CRIU restores becomes its child, so this holds for restored machines too.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from ortet.machines.standalone import ipc, loopback, mounter, port_forwarder, syscalls
else:
    # last in the search path, so that no module here replaces one of the standard library
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import ipc
    import loopback
    import mounter
    import port_forwarder
    import syscalls

_MACHINE_NAMESPACES = (
    syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUTS
    | syscalls.CLONE_NEWNET
)
_EXIT_POLLS, _EXIT_POLL_SECONDS = 200, 0.01  # how long to wait for killed processes
# index of the loopback interface; the root of its queueing disciplines
_LOOPBACK_INDEX, _QDISC_ROOT = 1, 0xFFFFFFFF
_RTM_NEWQDISC, _RTM_DELQDISC = (
    36,
    37,
)  # create or delete a queueing discipline; flags: acknowledge, create or replace
_NLM_REQUEST_ACK, _NLM_CREATE_REPLACE = 0x5, 0x500
_CRIU_CACHE = "/run/criu.kdat"


def main() -> None:
    """Serve requests until the hub is gone."""
    sock, criu, area = socket.socket(fileno=int(sys.argv[1])), sys.argv[2], sys.argv[3]
    kernel = syscalls.LinuxSyscalls()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    keeper = LiveSupervisor(kernel, sock, criu, f"{area}/criu-{_boot_id()}.kdat")
    keeper.warm_criu_cache()
    ipc.send(sock, {"ready": os.getpid()})
    while True:
        try:
            keeper.wait_request()
            request, fds = ipc.receive(sock)
        except ipc.ConnectionClosed:
            keeper.shut_down()
            os._exit(0)
        try:
            reply = keeper.handle(request, fds)
        except OSError as error:
            reply = {"error": str(error), "errno": error.errno}
        finally:
            for fd in fds:
                os.close(fd)
        with contextlib.suppress(ipc.ConnectionClosed):
            ipc.send(sock, reply)


class LiveSupervisor:
    """Answers one request at a time; slow work is done in a forked child.

    The last descriptor of a request is a pipe on which the child reports an error. If the child
    closes it without writing, it succeeded.
    """

    def __init__(
        self, kernel: syscalls.LinuxSyscalls, sock: socket.socket, criu: str, cache_copy: str
    ) -> None:
        self._kernel = kernel
        self._sock = sock
        self._criu = criu
        self._cache_copy = cache_copy  # copy of CRIU's cache of kernel features
        self._cache_pid = 0  # pid of the process that fills the cache
        self._cgroups: set[str] = set()
        self._killed_with_machine: dict[
            int, int
        ] = {}  # pidfd of a machine's pid 1 -> pidfd to kill when it ends

    def warm_criu_cache(self) -> None:
        """Let CRIU probe the kernel once, in the background: each probe takes as long as a dump."""
        if not os.path.exists(self._cache_copy):
            self._cache_pid = self._fork(syscalls.CLONE_NEWNS, self._run_criu_check, [])["pid"]

    def _run_criu_check(self) -> NoReturn:
        self._cache_pid = 0
        self._mount_private_run()
        child = os.posix_spawn(self._criu, [self._criu, "check"], {"PATH": os.defpath})
        os.waitpid(child, 0)
        with contextlib.suppress(OSError):
            _copy_file(_CRIU_CACHE, f"{self._cache_copy}.{os.getpid()}")
            os.rename(f"{self._cache_copy}.{os.getpid()}", self._cache_copy)
        os._exit(0)

    def _wait_for_cache(self) -> None:
        """Wait until the cache is filled.

        Otherwise CRIU probes the kernel itself, with a connection in a network whose traffic is
        blocked.
        """
        with contextlib.suppress(ProcessLookupError):
            while self._cache_pid and not os.path.exists(self._cache_copy):
                os.kill(self._cache_pid, 0)
                time.sleep(_EXIT_POLL_SECONDS)

    def _mount_private_run(self) -> None:
        """Mount a private tmpfs on /run that holds the cache.

        CRIU reads and writes its cache there, and only if /run is a tmpfs.
        """
        self._wait_for_cache()
        self._kernel.make_mounts_private()
        self._kernel.mount(
            "tmpfs", "/run", "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=700"
        )
        with contextlib.suppress(OSError):
            _copy_file(self._cache_copy, _CRIU_CACHE)

    def shut_down(self) -> None:
        """Kill the machines and remove their control groups, after the hub has ended."""
        for group in self._cgroups:
            with contextlib.suppress(OSError), open(f"{group}/cgroup.procs") as file:
                for pid in file.read().split():
                    with contextlib.suppress(OSError):
                        os.kill(int(pid), signal.SIGKILL)
        for _ in range(_EXIT_POLLS):
            self._cgroups = {group for group in self._cgroups if not _remove_cgroup(group)}
            if not self._cgroups:
                return
            time.sleep(_EXIT_POLL_SECONDS)

    def wait_request(self) -> None:
        """Wait for the next request.

        While waiting, kill the processes that are tied to a machine that has ended.
        """
        while True:
            poll = select.poll()
            for fd in (self._sock.fileno(), *self._killed_with_machine):
                poll.register(fd, select.POLLIN)
            heard = {fd for fd, _ in poll.poll()}
            for machine in heard & self._killed_with_machine.keys():
                other = self._killed_with_machine.pop(machine)
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(other, signal.SIGKILL)
                os.close(machine)
                os.close(other)
            if self._sock.fileno() in heard:
                return

    def handle(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Carry out one request, and return its reply."""
        what = request["do"]
        self._cgroups = {group for group in self._cgroups if os.path.isdir(group)}
        self._cgroups.update(request.get("groups", ()))
        if what == "start":
            return self._fork(_MACHINE_NAMESPACES, lambda: self._exec_init(request, fds), fds)
        # The other children create their namespaces themselves, because this process must not
        # block.
        if what == "worker":
            return self._fork(0, lambda: self._exec_dump_worker(fds), fds)
        if what == "pager":
            return self._fork(0, lambda: self._exec_pager(request), fds)
        if what == "branch":
            return self._fork(
                syscalls.CLONE_NEWNS, lambda: self._clone_mounts(request["plan"], fds), fds
            )
        if what == "porter":
            return self._fork(0, lambda: self._run_port_forwarder(request["port"], fds), fds)
        if what == "hush":
            return self._fork(0, lambda: self._set_network_blocked(request["on"], fds[0]), fds)
        if what == "spare":
            return self._fork(0, lambda: self._exec_spare_criu(request["groups"], fds), fds)
        if what == "outlet":
            return self._fork(0, lambda: self._exec_outbound_network(request["argv"], fds), fds)
        if what == "stand":
            return self._fork(0, lambda: self._set_fallback_address(fds[0], on=request["on"]), fds)
        if what == "tie":
            machine, other = fds
            self._killed_with_machine[os.dup(machine)] = os.dup(other)
            return {}
        return self._fork(0, lambda: self._prepare_spare(request, fds), fds)

    def _fork(self, flags: int, child: Callable[[], NoReturn], fds: list[int]) -> dict[str, Any]:
        pid = self._kernel.fork_into_namespaces(flags)
        if pid:
            return {"pid": pid}
        try:
            self._kernel.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)
            self._sock.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            child()
        except BaseException as error:
            with contextlib.suppress(OSError, IndexError):
                os.write(fds[-1], f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(1)

    def _exec_init(self, request: dict[str, Any], fds: list[int]) -> NoReturn:
        """Become pid 1 of a new machine: execute its program inside the machine."""
        join_cgroups(request["groups"])
        mounter.Mounter(self._kernel, request["plan"]).build()
        loopback.bring_up()
        socket.sethostname(request["hostname"])
        os.setsid()
        nothing = os.open("/dev/null", os.O_RDWR)
        for number in range(3):
            os.dup2(nothing, number)
        os.dup2(fds[-1], 3)
        os.closerange(4, 1 << 16)
        os.set_inheritable(3, True)
        argv = [*request["argv"], "3"]
        os.execve(argv[0], argv, request["env"])

    def _exec_dump_worker(self, fds: list[int]) -> NoReturn:
        """Become a CRIU in the network namespace of a machine.

        CRIU then does not dump the namespace.
        """
        talk, net, _ = fds
        self._kernel.unshare(syscalls.CLONE_NEWNS)
        self._kernel.join_namespace(net, syscalls.CLONE_NEWNET)
        self._mount_private_run()
        self._exec_criu_worker(talk)

    def _clone_mounts(self, plan: dict[str, Any], fds: list[int]) -> NoReturn:
        """Copy a machine's mounts with another workspace.

        Sends open descriptors of the copy's root directory and namespace; see
        `Mounter.clone_namespace`. Pid 1 of a live machine has no right to do this.
        """
        talk, machine, _ = fds
        workspace = mounter.Mounter(self._kernel, plan).build_detached_workspace()
        own = os.open("/proc/self/ns", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._kernel.join_mount_namespace(machine)
        self._kernel.unshare(syscalls.CLONE_NEWNS)
        self._kernel.move_mount(workspace, plan["place"])
        root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        namespace = os.open("mnt", os.O_RDONLY | os.O_CLOEXEC, dir_fd=own)
        ipc.send(socket.socket(fileno=talk), {}, [root, namespace])
        os._exit(0)

    def _run_port_forwarder(self, port: int, fds: list[int]) -> NoReturn:
        """Forward connections on a host socket to a machine."""
        listener, net, machine, ready = fds
        self._kernel.join_namespace(net, syscalls.CLONE_NEWNET)
        os.close(ready)
        port_forwarder.serve(socket.socket(fileno=listener), machine, port)

    def _exec_outbound_network(self, argv: list[str], fds: list[int]) -> NoReturn:
        """Become the outbound network program of a machine.

        The program gets the machine's network namespace, and the descriptor for its ready message,
        as numbers in its arguments.
        """
        net, log, ready = fds
        _refuse_host_network(net)
        nothing = os.open("/dev/null", os.O_RDWR)
        for number, fd in enumerate((nothing, nothing, log)):
            os.dup2(fd, number)
        for fd in (net, ready):
            os.set_inheritable(fd, True)
        numbers = {"NET": f"/proc/self/fd/{net}", "TOLD": f"--ready-fd={ready}"}
        argv = [numbers.get(word, word) for word in argv]
        os.execve(argv[0], argv, {"PATH": os.defpath})

    def _set_fallback_address(self, net: int, *, on: bool) -> NoReturn:
        """Assign the outbound address to loopback, or remove it again.

        Loopback holds the address while no slirp4netns interface exists.
        """
        _refuse_host_network(net)
        self._kernel.join_namespace(net, syscalls.CLONE_NEWNET)
        if on:
            loopback.bring_up()  # the new network may not have it up yet
            loopback.add_fallback_address()
        else:
            loopback.remove_fallback_address()
        os._exit(0)

    def _exec_spare_criu(self, groups: list[str], fds: list[int]) -> NoReturn:
        """Become a CRIU for a future restore, with a new network.

        `_prepare_spare` adds the mounts.
        """
        join_cgroups(groups)
        self._kernel.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWNET)
        self._kernel.make_mounts_private()
        loopback.bring_up()
        net = os.open("/proc/self/ns/net", os.O_RDONLY)
        os.dup2(net, ipc.NETWORK_FD)
        self._exec_criu_worker(fds[0])

    def _prepare_spare(self, request: dict[str, Any], fds: list[int]) -> NoReturn:
        """Prepare a waiting CRIU for the restore of one machine.

        Creates the machine's mounts in CRIU's mount namespace, and moves CRIU to the machine's
        control groups. The processes that CRIU restores are then in these groups too.
        """
        join_cgroups(request["groups"], request["pid"])
        self._kernel.join_mount_namespace(fds[0])
        mounter.Mounter(self._kernel, request["plan"]).build_without_pivot()
        self._mount_private_run()
        os._exit(0)

    def _set_network_blocked(self, blocked: bool, net: int) -> NoReturn:
        self._kernel.join_namespace(net, syscalls.CLONE_NEWNET)
        set_network_blocked(blocked)
        os._exit(0)

    def _exec_pager(self, request: dict[str, Any]) -> NoReturn:
        """Become a CRIU pager, which loads memory after its processes have started."""
        self._kernel.unshare(syscalls.CLONE_NEWNS)
        self._mount_private_run()
        self._exec_criu("lazy-pages", "-D", request["images"], "-W", request["work"])

    def _exec_criu_worker(self, rpc_fd: int) -> NoReturn:
        os.set_inheritable(rpc_fd, True)
        self._exec_criu("swrk", str(rpc_fd))

    def _exec_criu(self, *arguments: str) -> NoReturn:
        os.execve(self._criu, [self._criu, *arguments], {"PATH": os.defpath})


def join_cgroups(groups: list[str], pid: int = 0) -> None:
    """Move a process, or this one, to control groups; its future children are in them too."""
    for group in groups:
        # A process that moves its only thread itself need not wait for the kernel.
        alone = f"{group}/tasks"
        name = alone if not pid and os.path.exists(alone) else f"{group}/cgroup.procs"
        with open(name, "w", encoding="ascii") as file:
            file.write(str(pid))


def _refuse_host_network(net: int) -> None:
    """Raise OSError if `net` is the host's network.

    This protects the host's network against a mistake elsewhere.
    """
    if os.path.samestat(os.fstat(net), os.stat("/proc/self/ns/net")):
        raise OSError(errno.EINVAL, "this is the host's own network")


def _copy_file(source: str, target: str) -> None:
    with open(source, "rb") as source_file, open(target, "wb") as target_file:
        target_file.write(source_file.read())


def _boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def _remove_cgroup(group: str) -> bool:
    try:
        os.rmdir(group)
    except OSError as error:
        return error.errno == errno.ENOENT
    return True


def set_network_blocked(blocked: bool) -> None:
    """Block or unblock all outgoing packets in the network namespace of this process.

    Blocking installs a queue with room for no packet. A packet that does not fit counts as not
    sent, so TCP sends it again later and nothing is lost.
    """
    queue = struct.pack("=HH8sHHI", 10, 1, b"pfifo", 8, 2, 0) if blocked else b""
    body = struct.pack("=BxxxiIII", 0, _LOOPBACK_INDEX, 0, _QDISC_ROOT, 0) + queue
    what, flags = (
        (_RTM_NEWQDISC, _NLM_REQUEST_ACK | _NLM_CREATE_REPLACE)
        if blocked
        else (_RTM_DELQDISC, _NLM_REQUEST_ACK)
    )
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
        sock.send(struct.pack("=IHHII", 16 + len(body), what, flags, 1, 0) + body)
        (error,) = struct.unpack_from("=i", sock.recv(4096), 16)
    if error:
        raise OSError(-error, os.strerror(-error))


if __name__ == "__main__":
    main()
