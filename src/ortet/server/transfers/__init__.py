"""Upload and download of files, bundles and bodies."""
