"""The one thread that calls an embedder, which may be slow, fail, hang, or give nonsense."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ortet.errors import Invalid, OrtetError
from ortet.ids import Clock
from ortet.memory.embedders.base import Embedder
from ortet.memory.vectors.backlog import Backlog, Want

if TYPE_CHECKING:
    from ortet.memory.embedders.base import Floats

Array = NDArray[np.float32]
Keep = Callable[[bytes, Mapping[bytes, Array]], bool]
"""Stores vectors by the hash of their text. The mark is of when the texts were read; False when
something was erased since."""

LATE = "late"
_FIRST_PAUSE_NS = 1_000_000_000
_LONGEST_PAUSE_NS = 300_000_000_000
_SMALLEST, _USUAL, _LARGEST = 1, 16, 256  # batches: after a failure, at first, at most
_QUICK, _SLOW = 0.05, 0.2  # seconds that a batch took: the next one is larger, or smaller
_REMEMBERED = 64  # questions whose vectors are kept
_WAITING = 4  # questions that a slow embedder still has to answer, though nobody waits any more


class Pause:
    """After a failure nothing is tried for a while, twice as long after each further one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = 0
        self._length = 0
        self.why = ""

    def over(self) -> bool:
        passed = self._clock.now_ns() - self._since
        return not self.why or not 0 <= passed < self._length  # a clock may be set back

    def begin(self, why: str) -> None:
        self.why = why
        self._since = self._clock.now_ns()
        self._length = min(max(2 * self._length, _FIRST_PAUSE_NS), _LONGEST_PAUSE_NS)

    def end(self) -> None:
        self.why = ""
        self._length = 0


class Answered(NamedTuple):
    """The vector of a question, or why there is none: LATE, or "failed: …"."""

    vector: Array | None
    status: str = ""


class Filler:
    """Questions come first, then the backlog, the newest texts before the others. The thread is
    there only while there is something to do. Nothing an embedder does raises here."""

    def __init__(self, embedder: Embedder, backlog: Backlog, keep: Keep, *, clock: Clock) -> None:
        self._embedder = embedder
        self._backlog = backlog
        self._keep = keep
        self.size = int(getattr(embedder, "size", None) or 0)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._called = 0.0  # since when the embedder has not answered
        self._asked: dict[bytes, str] = {}
        self._answers: dict[bytes, Array] = {}
        self._asking = Pause(clock)
        self._filling = Pause(clock)
        self._batch = _USUAL
        self._closed = False

    @property
    def why(self) -> str:
        """Why the last texts have no vectors; empty when they have."""
        return self._asking.why or self._filling.why

    def ask(self, digest: bytes, text: str, patience: float) -> Answered:
        """Waits no longer than `patience`, in seconds; the answer is remembered when it comes."""
        with self._changed:
            if digest not in self._answers:
                if not self._asking.over():
                    return Answered(None, f"failed: {self._asking.why}")
                self._asked[digest] = text
                while len(self._asked) > _WAITING:
                    del self._asked[next(iter(self._asked))]
                self._start()
                self._changed.wait_for(lambda: digest not in self._asked, self._left(patience))
            if digest in self._answers:
                return Answered(self._answers[digest])
            failed = digest not in self._asked and self._asking.why
            return Answered(None, f"failed: {failed}" if failed else LATE)

    def fill(self, wants: Mapping[bytes, Want], allowance: float) -> None:
        """Waits until all that is wanted has been tried, or the allowance is used up."""
        with self._changed:
            self._backlog.add(wants, again=self._filling.over())
            self._start()
            self._changed.wait_for(lambda: self._thread is None, self._left(allowance))

    def expect(self, size: int) -> None:
        """The size of the vectors that were kept under this name; 0: there are none."""
        self.size = size or self.size

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._asked.clear()
            self._backlog.clear()
            self._changed.notify_all()

    def _left(self, seconds: float) -> float:
        """Of a wait, when the embedder has already been waited for in vain."""
        late = self._called and time.monotonic() - self._called > seconds
        return 0 if late or self._closed else seconds

    def _start(self) -> None:
        if self._thread is None and self._next() is not None:
            self._thread = threading.Thread(target=self._run, name="ortet-embedder", daemon=True)
            self._thread.start()

    def _next(self) -> Callable[[], None] | None:
        if self._closed or not self._asking.over():
            return None
        if self._asked:
            return self._answer
        if self._backlog and self._filling.over():
            return self._fill
        return None

    def _run(self) -> None:
        while True:
            with self._changed:
                do = self._next()
                if do is None:
                    self._thread = None
                    self._changed.notify_all()
                    return
            do()

    def _answer(self) -> None:
        with self._changed:
            digest, text = next(reversed(self._asked.items()))
        try:
            made, good = self._embed([text])
            if not good.all():
                raise _nonsense(self._embedder, "a vector that is zero or not of numbers")
        except BaseException as error:
            with self._changed:
                self._asking.begin(_reason(error))
                self._asked.clear()
                self._changed.notify_all()
            return
        with self._changed:
            self._asking.end()
            self._asked.pop(digest, None)
            while len(self._answers) >= _REMEMBERED:
                del self._answers[next(iter(self._answers))]
            self._answers[digest] = made[0]
            self._changed.notify_all()

    def _fill(self) -> None:
        batch: dict[bytes, str] = {}
        try:
            mark, batch = self._backlog.take(self._batch)
            if not batch:
                return
            began = time.monotonic()
            made, good = self._embed(list(batch.values()))
            took = time.monotonic() - began
            if not good.any():
                raise _nonsense(self._embedder, "vectors that are zero or not of numbers")
            rows = zip(batch, made, good, strict=True)
            if not self._keep(mark, {digest: vector for digest, vector, fine in rows if fine}):
                self._backlog.drop_page()
                return
        except BaseException as error:
            with self._changed:
                self._filling.begin(_reason(error))
                self._batch = _SMALLEST  # perhaps it is one text that cannot be embedded
            self._backlog.failed(batch)
            return
        self._backlog.done(dict(zip(batch, good.tolist(), strict=True)))
        with self._changed:
            self._filling.end()
            if took < _QUICK:
                self._batch = min(2 * self._batch, _LARGEST)
            elif took > _SLOW:
                self._batch = max(self._batch // 2, _SMALLEST)

    def _embed(self, texts: Sequence[str]) -> tuple[Array, NDArray[np.bool_]]:
        self._called = time.monotonic()
        try:
            given = self._embedder.embed(texts)
        finally:
            self._called = 0.0
        made, good = unit(self._embedder, given, len(texts), self.size)
        self.size = made.shape[1]
        return made, good


def unit(
    embedder: Embedder, given: Floats, count: int, size: int
) -> tuple[Array, NDArray[np.bool_]]:
    """Vectors of length 1, and which of them can be used. Invalid when none can."""
    try:
        exact = np.asarray(given, np.float64)
    except (TypeError, ValueError) as error:
        raise _nonsense(embedder, f"what are no vectors of one size ({error})") from error
    if exact.ndim != 2 or len(exact) != count or not exact.shape[1]:
        raise _nonsense(embedder, f"an array of shape {exact.shape} for {count} texts")
    if size and exact.shape[1] != size:
        raise _nonsense(
            embedder,
            f"{exact.shape[1]} numbers a text, where {size} are expected: a model that changed "
            "needs another name",
        )
    with np.errstate(all="ignore"):
        exact = exact / np.abs(exact).max(axis=1, keepdims=True)  # whose squares are not too large
        exact /= np.sqrt(np.square(exact).sum(axis=1, keepdims=True))
        good: NDArray[np.bool_] = np.isfinite(exact).all(axis=1)
    return exact.astype(np.float32), good


def _nonsense(embedder: Embedder, what: str) -> Invalid:
    return Invalid("bad_vectors", f"the embedder {embedder.name} gave {what}")


def _reason(error: BaseException) -> str:
    if isinstance(error, OrtetError):
        return error.message
    return f"{type(error).__name__}: {error}"[:300]
