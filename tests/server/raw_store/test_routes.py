"""Remote hubs that write to a store which programs of its own host have open."""

from __future__ import annotations

from tests.fixtures.http_server import Server

import ortet
from ortet.config.environment import open_hub
from ortet.ids import to_hex


def test_a_commit_of_a_remote_hub_is_found_by_its_id(server: Server) -> None:
    """It comes as a pack: nothing else on this host tells that there is one."""
    environ = {**server.env, "ORTET_URL": "", "XDG_CACHE_HOME": str(server.home / "elsewhere")}
    with ortet.open(server.store) as here, open_hub(server.url, environ=environ) as far:
        with here.session("here") as session:
            session.say("user", "one")
            session.commit("one")
        with far.session("far") as session:
            for text in ("one", "two"):
                session.say("user", text)
                oid = session.commit(text).oid
                for ref in (oid, oid[:20]):
                    assert to_hex(here.refs.resolve(ref)) == oid
