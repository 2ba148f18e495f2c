"""Content-addressed objects: blobs, packs, tails, garbage collection, verification."""
