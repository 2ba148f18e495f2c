"""The hub: an open store, its sessions and workspaces, maintenance and transfer."""
