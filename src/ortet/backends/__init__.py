"""Storage contracts (Bucket, Catalog, Signal, Cache) and their implementations."""
