"""Programs and kernels in the machine of a session."""
