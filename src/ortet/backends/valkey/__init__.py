"""Signal and cache on Valkey or Redis."""
