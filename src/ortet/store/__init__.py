"""What code on an open store shares: dependencies, lease, commit, retry after a sweep."""
