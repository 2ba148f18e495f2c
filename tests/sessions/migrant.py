"""What a host does with a session that goes from host to host: run as a program, by the name of a
function; prints what it found, as JSON."""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

import ortet
from ortet.hub.hub import Hub
from ortet.sessions.session import Session

PORT = 3000
# Has memory of its own, something left in a pipe, and a socket that listens.
_PROGRAM = f"""
import os, socket
reader, writer = os.pipe()
os.write(writer, b"left in the pipe")
secret, count = os.urandom(1 << 20), 0
listener = socket.create_server(("127.0.0.1", {PORT}))
while True:
    client, _ = listener.accept()
    with client:
        count += 1
        word = client.recv(100)
        told = os.read(reader, 100).decode() if word == b"pipe" else hash(secret)
        client.sendall(f"{{count}} {{told}}".encode())
"""
_ASK = f"""
import socket, sys, time
for _ in range(600):
    try:
        client = socket.create_connection(("127.0.0.1", {PORT}))
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
client.sendall(sys.argv[1].encode())
print(client.recv(100).decode())
"""


def ask(s: Session, word: str = "count") -> list[str]:
    done = s.run(["python3", "-c", _ASK, word], timeout=90)
    assert done.exit_code == 0, done
    return done.stdout.strip().split(" ", 1)


def seen(s: Session) -> dict[str, Any]:
    found = s.run("find . -type f | sort | xargs grep -H .")
    return {
        "files": found.stdout.splitlines(),
        "messages": [message.content for message in s.messages()],
        "facts": [fact.text for fact in s.facts()],
        "plan": [s.steps, s.step],
        "losses": [[loss.path, loss.what] for loss in s.machine.losses],
        "engine": s.machine.engine,
        "running": sorted(job.name for job in s.programs.jobs() if job.code is None),
    }


def begin(hub: Hub) -> dict[str, Any]:
    with hub.session("s", engine="criu", goal="go from host to host") as s:
        s.say("user", "one")
        s.plan(["begin", "go on", "come back"])
        s.learn("the port is 3000")
        s.run("echo one > one; mkdir deep; echo two > deep/two")
        s.spawn("counter", ["python3", "-c", _PROGRAM])
        counted = ask(s)
        s.commit("begun")
        s.run("echo three > three")  # and not committed
        return {**seen(s), "counted": counted}


def go_on(hub: Hub) -> dict[str, Any]:
    with hub.session("s") as s:
        first = ask(s)
        piped = ask(s, "pipe")
        found = seen(s)
        s.say("assistant", "two")
        s.advance()
        s.run("rm one; echo changed > deep/two; echo four > four")
        return {**found, "counted": first, "piped": piped}


def come_back(hub: Hub) -> dict[str, Any]:
    with hub.session("s") as s:
        return {**seen(s), "counted": ask(s)}


def look(hub: Hub) -> dict[str, Any]:
    with hub.session("s") as s:
        return seen(s)


def go_back(hub: Hub) -> dict[str, Any]:
    """To the commit that was made by hand, and what of it does not come back."""
    with hub.session("s") as s:
        found = seen(s)
        begun = next(one.oid for one in hub.log(s.internals.row.branch) if one.message == "begun")
        left = s.restore(begun).files.losses
        return {**found, "left": [[loss.path, loss.what] for loss in left]}


def be_killed(hub: Hub) -> None:
    """With something that is not committed."""
    s = hub.session("s")
    s.run("echo lost > never-committed")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    signal.pause()


def write(hub: Hub) -> dict[str, Any]:
    with hub.session("s") as s:
        s.run("echo other > other")
        return seen(s)


def reflog(hub: Hub) -> dict[str, Any]:
    """The files of commits that only the reflog has."""
    with hub.session("s") as s:
        found, branch = seen(s), s.internals.row.branch
        oids = [op.new for op in hub.catalog.ops(f"branch:{branch}") if op.new]
        names = [
            sorted(change.path for change in hub.diff(oids[0].hex(), oid.hex())) for oid in oids
        ]
        return {**found, "known": names}


if __name__ == "__main__":
    with ortet.open() as opened:
        sys.stdout.write(json.dumps(globals()[sys.argv[1]](opened)))
