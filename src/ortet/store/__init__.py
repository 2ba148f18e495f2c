"""Objects by hash: blobs, packs, tails, sweep, verify."""
