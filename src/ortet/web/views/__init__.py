"""What each part of the page shows."""
