"""The session verbs with rows or objects: spend, budget, model_call, intend, settle, artifact.

It also has the steps around each action: budget check, automatic commit, pause when the budget is
spent.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

from ortet._util.failpoints import failpoint
from ortet._util.validation import DICT, FLAG, LIST, check_text, optional, require
from ortet.errors import Invalid, OrtetError, Refused
from ortet.history.commits import CommitInfo
from ortet.journal.events import Draft, Event
from ortet.journal.state.records import Artifact
from ortet.sessions.actions import artifacts
from ortet.sessions.actions.actions import Action, KeyScope, Replay, check_action
from ortet.sessions.actions.artifacts import Orphans, StoredContent
from ortet.sessions.actions.budget import Budget
from ortet.sessions.actions.budget_math import SOFT, Amounts, check_amounts, parse_limits
from ortet.sessions.actions.effects import EffectLog, Intent
from ortet.sessions.actions.model_calls import amounts_of, as_bytes, call_data
from ortet.sessions.environment.outside import ExternalStateMixin
from ortet.sessions.table import PAUSED
from ortet.sessions.writing.auto_commit import AutoCommit
from ortet.sessions.writing.event_writer import EventWriter
from ortet.store.sweep_retry import retry_on_sweep, run_with_sweep_retry

if TYPE_CHECKING:
    from ortet.objects.store import Durability
    from ortet.workspaces.workspace import Workspace

_SPENT = "the budget is spent"
_SECRET_HINT = "make it without (variables of a kernel: declare others)"


class ActionsMixin(ExternalStateMixin):
    """The verbs of Session whose events are written together with rows or objects."""

    _writer: EventWriter
    _budget: Budget
    _effects: EffectLog
    _auto_commit: AutoCommit
    _pause_pending = False  # the budget is spent: pause after the running actions end

    @abstractmethod
    def _begin_change(self) -> None:
        """Check that the session is open, and mark it as changed."""

    @abstractmethod
    def _drain_inbox(self) -> None: ...

    @abstractmethod
    def _workspace(self) -> Workspace | None: ...

    @abstractmethod
    def _end(self, status: str, why: str) -> None: ...

    @abstractmethod
    def _require_live(self, verb: str) -> None: ...

    @abstractmethod
    def commit(
        self, message: str = "", *, allow_secrets: bool = False, durable: Durability | None = None
    ) -> CommitInfo: ...

    # budget

    def spend(self, *, model: str = "", **amounts: float) -> Event:
        """Record that some of the budget was used.

        The spend is recorded even if it exceeds a limit. The session is then paused.

        Args:
            model: the model that was paid.
            **amounts: the amount of each counter, such as tokens or usd.

        Raises:
            Refused: "budget_spent" if a limit is exceeded. It says what is left and how to raise
                the limit.
        """
        check_text(model=model)
        return self._spend(check_amounts(amounts), model)

    def budget(self, *, soft: Mapping[str, float | None] | None = None, **limits: Any) -> Event:
        """Set limits for this session and its forks. Limits that are not given stay.

        Args:
            soft: limits that record a warning once when they are reached.
            **limits: hard limits by counter; None removes one. The session pauses when one is
                exceeded.
        """
        optional(DICT, soft=soft)
        asked = parse_limits({**limits, SOFT: soft or {}})
        if not asked.hard and not asked.soft:
            raise Invalid("bad_budget", "no limit was given: as s.budget(usd=10)")
        self._begin_change()
        return self._budget.limit(asked)

    def budget_left(self) -> dict[str, float]:
        """Return the remaining amount of each limited counter.

        Limits of the session that this one works for are included. Time is counted up to now.
        """
        return self._budget.remaining()

    def model_call(  # noqa: PLR0917 - in the order one says it
        self,
        provider: str,
        model: str,
        params: Mapping[str, Any] | None = None,
        usage: Mapping[str, Any] | None = None,
        request: Any = None,
        response: Any = None,
    ) -> Event:
        """Record a model call that was made, and spend its usage; see `spend`.

        Request and response are stored as objects that the event refers to. Known secrets in them
        are replaced by their names.

        Args:
            provider: the provider of the model.
            model: the name of the model.
            params: the parameters of the call.
            usage: the usage report. Every number in it is spent.
            request: bytes, text or plain data.
            response: bytes, text or plain data.

        Returns:
            The event of the call.

        Raises:
            Refused: "budget_spent" if a limit is exceeded. The call is recorded.
        """
        optional(DICT, params=params, usage=usage)
        usage = dict(usage or {})
        data = call_data(provider, model, dict(params or {}), usage)
        amounts = check_amounts(amounts_of(usage))
        parts = {"request": request, "response": response}
        said = {name: as_bytes(value) for name, value in parts.items() if value is not None}
        self._begin_change()

        def tell() -> tuple[list[Event], Refused | None]:
            with (
                self._store.writing()
            ):  # a sweep must not delete the objects before the event exists
                refs = []
                for name, content in said.items():
                    stored = artifacts.store_content(
                        self._store.objects, self._store.secrets.redact_bytes(content)
                    )
                    data[name] = {"oid": stored.oid, "size": stored.size}
                    refs += stored.refs
                self._store.objects.flush()
                draft = Draft("model", data, self._store.author, refs)
                return self._budget.spend(amounts, model=model, drafts=[draft])

        events, refusal = run_with_sweep_retry(self._store, tell)
        self._auto_commit_if_due("model", data)
        if refusal is not None:
            self._stop(refusal)
        return events[0]

    def _spend(self, amounts: Amounts, model: str) -> Event:
        self._begin_change()
        events, refusal = self._budget.spend(amounts, model=model)
        self._auto_commit_if_due("spend", {})
        if refusal is not None:
            self._stop(refusal)
        return events[0]

    # effects performed by other programs

    def intend(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        why: str = "",
        replay: Replay = "recorded",
        key: str = "",
        scope: KeyScope = "family",
        approve: str | None = None,
    ) -> Intent:
        """Record the intent of an effect that another program performs.

        The intent is durable on return. Call `settle` with the outcome afterwards.

        Args:
            name: the name of the action.
            args: its positional arguments.
            kwargs: its keyword arguments.
            why: the reason.
            replay: how the effect may be repeated: "pure", "recorded", "idempotent" or "once".
            key: an idempotency key; "" for none.
            scope: "family" for the session and all its forks, or "timeline".
            approve: the reason to show to a human, if an approval is needed.

        Returns:
            The intent. If `done` is True, the effect was performed before under this key and must
            not be performed again; `outcome` is its result.
        """
        action = check_action(Action(name, replay, key, scope))
        require(LIST, args=args)
        optional(DICT, kwargs=kwargs)
        self._require_live("begin a deed")
        self._prepare_action()
        return self._effects.intend(action, args, kwargs or {}, why=why, approve=approve)

    def settle(
        self, effect: str, outcome: Any = None, *, failed: bool = False, error: str = ""
    ) -> Event:
        """Record the outcome of an action that has none.

        Args:
            effect: the id of the effect.
            outcome: its result.
            failed: True if it was not performed or failed.
            error: how it failed. Given text implies `failed`.

        Raises:
            NotFound: there is no such effect.
            Conflict: "settled" if it already has an outcome.
        """
        check_text(effect=effect, error=error)
        require(FLAG, failed=failed)
        self._require_live("settle")
        self._begin_change()
        event = self._effects.settle(effect, outcome, failed=failed, error=error)
        self._auto_commit_if_due("ended", event.data)
        return event

    # artifacts

    def artifact(
        self,
        name: str | os.PathLike[str],
        *,
        kind: str = "",
        data: bytes | str | BinaryIO | None = None,
        media: str = "",
        link: str = "",
        why: str = "",
        allow_secrets: bool = False,
    ) -> Artifact:
        """Store an artifact. The same name again makes the next version.

        The artifact records the action in which it was made.

        Args:
            name: the name, or the path of the file in the workspace if there is no `data` and no
                `link`.
            kind: what it is, for example "report".
            data: the content, or an open file that is read from its first byte.
            media: the media type; by default guessed from the name.
            link: where the content is, if it is not stored.
            why: the reason.
            allow_secrets: store it even if it holds a known secret.

        Raises:
            Refused: "secret_found" if it holds a known secret.
        """
        check_text(kind=kind, media=media, link=link, why=why)
        require(FLAG, allow_secrets=allow_secrets)
        with self._store.secrets.allow(allow_secrets):
            made, kept = self._store_artifact(
                name, kind=kind, data=data, media=media, link=link, why=why
            )
        self._auto_commit_if_due("artifact", made)
        return kept

    @retry_on_sweep
    def _store_artifact(
        self,
        name: str | os.PathLike[str],
        *,
        kind: str,
        data: bytes | str | BinaryIO | None,
        media: str = "",
        link: str = "",
        why: str = "",
    ) -> tuple[dict[str, Any], Artifact]:
        self._begin_change()
        text = artifacts.check_name(name)
        with self._store.writing():  # a sweep must not delete the content before the event exists
            content = StoredContent("", 0)
            if data is not None and not isinstance(data, bytes | str) and hasattr(data, "fileno"):
                fd = artifacts.descriptor(data, text)
                content = artifacts.store_open(self._store.objects, fd, text, f"the file of {text}")
            elif data is not None:
                held = as_bytes(data)
                if search := self._store.objects.scanner:
                    search.data(held, f"artifact {text}", _SECRET_HINT)
                content = artifacts.store_content(self._store.objects, held)
            elif not link:
                text, path = artifacts.locate(text, self._root())
                content = artifacts.store_file(self._store.objects, path, text)
            self._store.objects.flush()
            failpoint("artifact.stored")
            with self._writer.exclusive():  # two threads must not make the same version
                made = {
                    "name": text,
                    "version": artifacts.last_version(self._state.artifacts, text) + 1,
                    "oid": content.oid,
                    "size": content.size,
                    "kind": kind,
                    "media": media or artifacts.guess_media(text, data),
                    "link": link,
                    "action": self._effects.current(),
                    "why": why,
                }
                # durable at once: only an event in the catalog protects its content from a sweep
                self._writer.add(
                    Draft("artifact", made, self._store.author, content.refs), durable=True
                )
                return made, artifacts.find(self._state.artifacts, text, None)

    def orphans(self) -> Orphans:
        """Return artifacts whose content is lost, and files without an artifact."""
        known, files = self.artifacts(), self._workspace()
        return Orphans(
            missing=artifacts.missing_content(self._store.objects, known),
            files=artifacts.unaccounted_files(files, known) if files is not None else [],
        )

    def _root(self) -> os.PathLike[str] | None:
        files = self._workspace()
        return files.path if files is not None else None

    # steps around each action

    @contextmanager
    def _action_scope(self) -> Iterator[None]:
        """Run the steps around an action: budget check before; commit or pause after it."""
        self._prepare_action()
        before = self._writer.tip.seq
        try:
            yield
        finally:
            if self._writer.tip.seq != before:
                self._auto_commit_if_due("ended", {})
            if self._pause_pending and not self._effects.in_progress:
                self._end(PAUSED, _SPENT)

    def _prepare_action(self) -> None:
        self._begin_change()
        self._drain_inbox()
        refusal = self._budget.refusal_if_spent()
        if refusal is not None:
            self._stop(refusal)

    def _stop(self, refusal: Refused) -> NoReturn:
        """Pause the session as soon as no action is in progress, and raise the refusal."""
        if self._effects.in_progress:
            self._pause_pending = True
        else:
            self._end(PAUSED, _SPENT)
        raise refusal

    def _auto_commit_if_due(self, kind: str, data: Mapping[str, Any]) -> None:
        """Commit if the policy says so, but never during an action."""
        if self._auto_commit.policy.when == "manual":
            return
        now = self._now()
        self._auto_commit.count_event(kind, data, now)
        if self._auto_commit.is_due(now) and not self._effects.in_progress:
            self._commit_automatically()

    def _commit_automatically(self) -> None:
        """Commit automatically.

        A failure is recorded as a warning, and the commit is retried later.
        """
        try:
            self.commit(f"by policy: {self._auto_commit.policy.when}")
        except OrtetError as error:
            self._auto_commit.postpone(self._now())
            with suppress(OrtetError):
                data = {"what": "commit", "kind": error.kind, "error": str(error)}
                self._writer.add(Draft("warning", data, self._store.author))
