"""The protocol of embedders, the weight of their ranking, and the check for their packages."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ortet.errors import Invalid, Unsupported

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats: TypeAlias = Sequence[Sequence[float]] | NDArray[np.floating[Any]]


class Embedder(Protocol):
    """A model that turns texts into vectors.

    `name` identifies the model. Use another name whenever the same text would give another vector:
    vectors of two names are never compared.

    `embed` returns one vector for each text. All vectors have the same size, and none is zero; they
    need not be normalised. Calls come from any thread, but one at a time.

    Two attributes are optional: `size`, the expected size of the vectors, and `trust`, the weight
    of the ranking by vectors if the ranking by words has the weight 1.
    """

    @property
    def name(self) -> str: ...

    def embed(self, texts: Sequence[str], /) -> Floats: ...


DEFAULT_TRUST = 0.5
"""Trust of an embedder that has no attribute `trust`."""


def trust_of(embedder: Embedder) -> float:
    """Return the weight of the embedder's ranking. Raise Invalid if it is not from 0 to 10."""
    trust = getattr(embedder, "trust", DEFAULT_TRUST)
    if isinstance(trust, bool) or not isinstance(trust, int | float) or not 0 <= trust <= 10:
        raise Invalid("bad_embedder", f"trust of an embedder is {trust!r}: give 0 to 10")
    return float(trust)


def require_package(package: str, extra: str) -> str:
    """Return the directory of an optional package, without importing it.

    Raises:
        Unsupported: If it is missing. The message says what to install.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise Unsupported(
            "not_installed",
            f"{package} is not installed and this embedder needs it: pip install 'ortet[{extra}]'",
        )
    return spec.submodule_search_locations[0]
