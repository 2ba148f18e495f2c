"""`python -m ortet`."""

from ortet.surface.front import main

if __name__ == "__main__":
    main()
