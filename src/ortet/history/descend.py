"""Every object below some roots, children first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ortet.objects.base import Kind, ObjectRef

ChildrenOf = Callable[[ObjectRef], Iterable[ObjectRef]]


def walk_postorder(
    roots: Iterable[ObjectRef], children_of: ChildrenOf
) -> Iterator[tuple[ObjectRef, list[ObjectRef]]]:
    """Each distinct (oid, kind) once with its references, after everything it refers to.

    `links_of` is not asked about blobs. Needs no recursion: a history is deeper than any stack.
    """
    done: set[ObjectRef] = set()
    for root in roots:
        stack = [(root, [root], iter([root]))]  # the root's own turn comes as its only child
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
