"""Configuration: reads the environment, settings and store URLs, and opens a hub from them."""
