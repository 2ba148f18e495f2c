"""CRIU image directories as objects of the store.

A dump is a directory of files: small image files, and `pages-*.img` files with the memory. Small
files are stored as blobs. Memory is stored as page maps, which refer to pages in blobs of at most
128 KiB.

Start with `save.py` (`save_images`) and `load.py` (`restore_images`). `pagemap.py` parses CRIU's
page maps and cuts memory into blocks. `page_store.py` stores blocks, or only their changed pages,
and reads and writes the page maps of the store. `save.check_images` searches a dump for secrets.

Invariants:

- A restored directory is equal to the dumped one, byte for byte.
- An unchanged page is not stored again. It is compared with the store, not with a file on disk.
- Block borders depend on addresses only, so that added pages do not move later blocks.

May import: `machines.host_compat`, `machines.secrets`, and the layers `history`, `objects`,
`_util`, `ids`, `errors`.
"""
