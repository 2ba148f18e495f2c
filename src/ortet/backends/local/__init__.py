"""Bucket, signal and cache on local files and memory."""
