# The verbs of this repository; each is a script that also works without just.

# ruff, mypy, layers
check:
    scripts/lint

# all tests; arguments go to pytest
test *args:
    scripts/test {{args}}

# the long campaigns
soak *args:
    scripts/soak {{args}}

# how many small changes of the source the tests notice; prints a table
mutation *args:
    scripts/mutation {{args}}

# Ortet and its peers in one run; writes bench/RESULTS.md
bench *args:
    scripts/bench {{args}}

# execute every code block of README.md and docs/guide
docs:
    scripts/test tests/test_docs.py

# the main job, shown
demo:
    scripts/demo
