"""Scripts that run inside or beside a machine with `python -I -S`.

They import the standard library and one another by bare name, and nothing else of ortet.
"""
