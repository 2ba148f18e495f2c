"""Client of the init process of a machine."""
