"""The overlay engine: a private view of the files by overlayfs."""
