"""Client of pid 1 of a machine: run commands, start shells and services, list processes.

Pid 1 of a live machine is `standalone/init.py`. An overlay machine with shells or services runs the
same program beside its own pid 1. It listens on a Unix socket inside the machine and answers one
JSON request at a time on each connection.

Start with `client.py` (`InitClient`, all requests; it follows a run to its end). `connection.py`
(`InitConnection`) is the transport, which a client has. The records of jobs, and `Job`, a handle
for a shell or service, are in `machines/jobs.py`, because the contract of machines returns them.

Invariants:

- No connection is open while the machine is dumped. A request that arrives during a dump waits.
- Pid 1 answers every request that it carried out before it closes a connection. So a request
  without a reply was not carried out, and is sent again.
- Replies are JSON, so that a machine cannot make this process run code.

May import: `machines.standalone`, the modules directly in `machines`, `_util` and `errors`.
"""
