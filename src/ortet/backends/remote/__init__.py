"""Bucket, catalog and signal of another Ortet server, over HTTP."""
