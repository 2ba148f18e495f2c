"""Configuration: from environment, settings and a store URL to an open Hub.

Start with `environment.open_hub`. It finds the store URL, opens the backends, and creates the Hub.

- `environment`: reads the environment variables that configure Ortet.
- `settings`: the fields of `config.toml`.
- `pointer_file`: the `.ortet` file that names the store of a directory.
- `store_url`: comparison and trust of URLs of stores reached over a network.
- `open_store`: opens an embedded store (a directory) or a remote store (`ortet serve`).
- `open_shared_store`: opens a store in PostgreSQL and a bucket.
- `store_format`: reads the format version of a catalog without changing it.
- `server_checks`: checks of `ortet doctor` for servers of a store.

Main invariants:

- Only this package chooses a concrete backend or engine.
- A store with a newer format or another key is refused before anything is changed.
- A store URL never contains a password of the database or of a server.

This package may import everything except the surfaces (cli, server, web, mcp_server, integrations).
"""
