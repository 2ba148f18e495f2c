"""Where bytes, rows and wake-ups live: three small seams and their implementations."""
