"""CRIU: dump and restore the processes of a live machine.

CRIU runs as a separate process (`criu swrk`) and is controlled by its RPC protocol.

Start with `dump.py` (`CriuDumper`) and `rpc.py` (`CriuWorker`, one dump or restore). `preflight.py`
finds processes that CRIU cannot dump, before anything is stopped. `options.py` has all options of
dumps and restores, and `protobuf.py` their encoding. `errors.py` turns CRIU's log into
errors. `worker_pool.py` keeps CRIU processes ready for the next restore.

The other modules correct what CRIU does not handle: `connections.py` TCP connections,
`file_locks.py` lost file locks, `binary.py` the choice of the CRIU program.

Invariants:

- A failed dump leaves the processes running.
- No packet is sent inside the machine while its TCP connections are dumped or restored.
- A restored connection to a peer outside the machine is closed, never continued.

May import: `live.supervisor_client`, `live.process`, `live.cgroups`, `live.open_files`,
`machines.control`, `machines.standalone`, the modules directly in `machines`, and `errors`.
"""
