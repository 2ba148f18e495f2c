"""The actions facet of a session: actions, effects and approvals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ortet._util.validation import DICT, FLAG, LIST, check_text, optional, require
from ortet.journal.events import Event
from ortet.journal.state.records import Approval, Effect
from ortet.sessions.actions.actions import (
    Action,
    ByArguments,
    CallOptions,
    KeyScope,
    Replay,
    Where,
    check_action,
)
from ortet.sessions.actions.approvals import approvals_of
from ortet.sessions.actions.effects import Intent
from ortet.sessions.context import SessionContext
from ortet.sessions.conversation_state import known_effects, unsettled_of
from ortet.sessions.writing.pipeline import VerbPipeline, need_writer


class SessionActions:
    """Actions of a session, with their effects and approvals."""

    def __init__(self, context: SessionContext, pipeline: VerbPipeline | None = None) -> None:
        self._context = context
        self._pipeline = pipeline

    @property
    def _verbs(self) -> VerbPipeline:
        return need_writer(self._pipeline)

    def act(
        self,
        function: Callable[..., Any],
        *args: Any,
        why: str = "",
        replay: Replay | None = None,
        key: str | ByArguments | None = None,
        scope: KeyScope | None = None,
        name: str | None = None,
        approve: str | None = None,
        where: Where | None = None,
        safe_errors: tuple[type[BaseException], ...] = (),
        **kwargs: Any,
    ) -> Any:
        """Call a function and record it as an action; see `Session.act`."""
        options = CallOptions(
            why=why,
            replay=replay,
            key=key,
            scope=scope,
            name=name,
            approve=approve,
            where=where,
            safe_errors=safe_errors,
        )
        return self._verbs.act(function, args, kwargs, options)

    def intend(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        why: str = "",
        replay: Replay = "recorded",
        key: str | ByArguments = "",
        scope: KeyScope | None = None,
        approve: str | None = None,
        where: Where | None = None,
    ) -> Intent:
        """Record the intent of an effect that another program performs.

        The intent is durable on return. Call `settle` with the outcome afterwards.

        Args:
            name: the name of the action.
            args: its positional arguments.
            kwargs: its keyword arguments.
            why: the reason.
            replay: how the effect may be repeated: "pure", "recorded", "idempotent" or "once".
            key: an idempotency key; "" for none, `ortet.by_arguments` for one made of the call.
            scope: "family" for the session and all its forks, or "timeline".
            approve: the reason to show to a human, if an approval is needed.
            where: "outside" (the default), or "workspace" for an effect that a restore undoes.

        Returns:
            The intent. If `done` is True, the effect was performed before under this key and must
            not be performed again; `outcome` is its result.
        """
        action = check_action(Action(name, replay, key, scope, where))
        require(LIST, args=args)
        optional(DICT, kwargs=kwargs)
        self._verbs.ensure_live("begin an effect")
        self._verbs.prepare_action()
        return self._verbs.effects.intend(action, args, kwargs or {}, why=why, approve=approve)

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
        self._verbs.ensure_live("settle")
        self._verbs.begin_change()
        event = self._verbs.effects.settle(effect, outcome, failed=failed, error=error)
        self._verbs.auto_commit_if_due("ended", event.data)
        return event

    def request_approval(self, what: str, *, why: str = "") -> str:
        """Ask a human for an approval and return its id. Read the answer with `approvals()`.

        Args:
            what: the action to approve.
            why: the reason, shown with the request.
        """
        self._verbs.begin_change()
        return self._verbs.effects.approvals.ask(what, why=why)

    # reading

    def effects(self) -> list[Effect]:
        """Return all effects of this session and its family. A restore removes none of them."""
        return [one.effect for one in known_effects(self._context)]

    def unsettled(self) -> list[Effect]:
        """Return the effects whose outcome nobody knows, oldest first; see `Session.unsettled`."""
        return unsettled_of(self._context)

    def approvals(self) -> list[Approval]:
        """Return the requested approvals with their answers.

        Answers that are still in the inbox are included.
        """
        return approvals_of(self._context.store.catalog, self._context.row.id, self._context.state)
