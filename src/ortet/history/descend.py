"""Walks all objects below some roots, children first.

It is a module of its own because both kinds of transfer use it, and it knows no records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ortet.objects.base import Kind, ObjectRef

ChildrenOf = Callable[[ObjectRef], Iterable[ObjectRef]]


def walk_postorder(
    roots: Iterable[ObjectRef], children_of: ChildrenOf
) -> Iterator[tuple[ObjectRef, list[ObjectRef]]]:
    """Yield each distinct (oid, kind) once with its references, after everything it refers to.

    `children_of` is not called for blobs. The walk uses a stack, because a history is deeper than
    the recursion limit.
    """
    done: set[ObjectRef] = set()
    for root in roots:
        stack = [(root, [root], iter([root]))]  # the root is visited as its own only child
        while stack:
            link, links, rest = stack[-1]
            for child in rest:
                if child in done:
                    continue
                if child.kind is not Kind.BLOB:
                    below = list(children_of(child))
                    stack.append((child, below, iter(below)))
                    break
                done.add(child)
                yield child, []
            else:
                stack.pop()
                if link not in done:
                    done.add(link)
                    yield link, links
