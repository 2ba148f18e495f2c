"""The network of a live machine: outbound connections, name resolution and port forwards.

A live machine has its own network namespace. By default it contains only loopback. With
`network="outbound"` or "host", slirp4netns runs beside the machine and makes its connections on the
host.

Start with `slirp.py` (`OutboundNetwork`). `overlay/layers/resolv_conf.py` writes /etc/resolv.conf.
`port_forward.py` forwards host ports into the machine.

Invariants:

- The host's own network is never changed.
- slirp4netns ends with its machine. It is stopped during a dump, so that no packet arrives.
- A missing slirp4netns is a `Loss` of the machine, not an error of its start.

May import: `live.supervisor_client`, `machines.overlay`, `machines.control`, `machines.standalone`,
the modules directly in `machines`, and `errors`.
"""
