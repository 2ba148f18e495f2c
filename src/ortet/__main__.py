"""`python -m ortet`."""

from ortet.surface.cli import main

if __name__ == "__main__":
    main()
