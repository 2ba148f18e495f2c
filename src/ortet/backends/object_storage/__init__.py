"""Bucket on S3, Azure and Google Cloud Storage, with a queue of uploads."""
