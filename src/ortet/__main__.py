"""`python -m ortet`."""

from ortet.cli.entry import main

if __name__ == "__main__":
    main()
