"""Commands act, effects and comment: actions, approvals and comments.

act has the subcommands ls, settle, waiting, approve and deny.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ortet.cli.call import CliCall, as_text, group, verb
from ortet.cli.session_args import (
    event_data,
    find_session,
    id_suffix,
    match_id,
    open_session,
    parse_value,
    read_session,
    read_text,
    session_argument,
    session_option,
    unsettled_effects,
)
from ortet.cli.terminal import output
from ortet.errors import Invalid, NotFound

if TYPE_CHECKING:
    from ortet.journal.state.records import Approval, Effect
    from ortet.sessions.reader import SessionReader
    from ortet.sessions.table import SessionRow

by_option = click.option("--by", default="", metavar="NAME", help="The author, by default you.")
why_option = click.option("--why", default="", metavar="TEXT", help="The reason.")


@verb()
@session_argument
@click.option("--unsettled", is_flag=True, help="Only effects whose outcome is not known.")
def effects(call: CliCall, session: str | None, *, unsettled: bool) -> None:
    """List the effects of a session and its forks, restored away or not.

    \b
    Example:
      ortet effects fix-42 --unsettled
    """
    view = read_session(call, session)
    selected = unsettled_effects(call, view) if unsettled else view.effects()
    call.output.emit(
        [output.fields(effect) for effect in selected], call.output.table(map(_cells, selected))
    )


def _cells(effect: Effect) -> tuple[str, ...]:
    return (
        id_suffix(effect.id),
        effect.state,
        effect.replay,
        output.format_time(effect.time),
        output.safe(effect.name),
        output.title(_command_and_reason(effect)),
    )


def _command_and_reason(effect: Effect) -> str:
    """Return the command and the reason of an effect, if they are known."""
    if not effect.command:
        return effect.why
    return f"{effect.command}  ({effect.why})" if effect.why else effect.command


@group
def act() -> None:
    """List and settle actions, and answer approvals.

    \b
    Example:
      ortet act ls -s fix-42
      ortet act settle 4f3a9c1b -s fix-42 --outcome '{"paid": true}'
      ortet act waiting
      ortet act approve 7d20e6f1 --why "checked the invoice"
    """


@verb("ls")
@session_option
@click.option(
    "--state", metavar="STATE", help="Only actions in this state: begun, done, failed or unsettled."
)
def act_ls(call: CliCall, session: str | None, *, state: str | None) -> None:
    """List the actions of a session and their results.

    \b
    Example:
      ortet act ls -s fix-42 --state failed
    """
    if state not in (None, "begun", "done", "failed", "unsettled"):
        raise Invalid("bad_state", f"--state {state!r}: give begun, done, failed or unsettled")
    selected = [
        one for one in _actions(read_session(call, session)) if state in (None, one["state"])
    ]
    rows = [
        (
            id_suffix(one["id"]),
            one["state"],
            output.format_time(one["time"]),
            _called(one),
            _outcome(one),
        )
        for one in selected
    ]
    call.output.emit(selected, call.output.table(rows))


def _actions(view: SessionReader) -> list[dict[str, Any]]:
    """Return each effect on this timeline, with the data of its events."""
    from ortet.integrations._shared.actions import actions_of

    rows = []
    for action in actions_of(view):
        fields = output.fields(action)
        rows.append({**output.fields(fields.pop("effect")), **fields})
    return rows


def _called(action: dict[str, Any]) -> str:
    from ortet.sessions.actions.actions import format_call

    return output.title(format_call(action["name"], action))


def _outcome(action: dict[str, Any]) -> str:
    value = action["error"] or (None if action["outcome"] is None else action["outcome"])
    why = f"({output.title(action['why'])})" if action["why"] else ""
    text = "" if value is None else f"-> {output.title(str(value))}"
    return f"{text}  {why}".strip()


@verb()
@click.argument("effect")
@click.option("--outcome", metavar="JSON", help="The result; text that is not JSON is a string.")
@click.option("--failed", is_flag=True, help="The action was not performed.")
@session_option
def settle(
    call: CliCall, effect: str, *, outcome: str | None, failed: bool, session: str | None
) -> None:
    """Record the outcome of an action whose outcome is not known.

    EFFECT is the id of the effect, or four or more of its first or last digits. Find out first:
    look at the account, the mail or the server. Afterwards the effect counts as done with this
    outcome, or as one that may be tried again.

    \b
    Example:
      ortet effects fix-42 --unsettled
      ortet act settle 4f3a9c1b -s fix-42 --outcome '{"paid": true}'
      ortet act settle 4f3a9c1b -s fix-42 --failed
    """
    if failed and outcome is not None:
        raise Invalid(
            "bad_usage", "an action that failed has no outcome: give --outcome or --failed"
        )
    row = find_session(call, session)
    id_ = match_id((one.id for one in read_session(call, row.id).effects()), effect) or effect
    opened = open_session(call, row.id)
    event = opened.actions.settle(
        id_, None if outcome is None else parse_value(outcome), failed=failed
    )
    call.output.emit(
        event_data(event), [f"settled {id_suffix(id_)}: {'failed' if failed else 'done'}"]
    )


@verb()
@session_option
@click.option("--all", "all_", is_flag=True, help="Also approvals that were answered.")
def waiting(call: CliCall, session: str | None, *, all_: bool) -> None:
    """List approvals that wait for an answer.

    Without -s, the approvals of all sessions are listed.

    \b
    Example:
      ortet act waiting
      ortet act waiting -s fix-42 --all
    """
    if session is None and not all_:
        from ortet.sessions.actions.approvals import pending_approvals

        pairs = pending_approvals(call.hub.internals.services)
    else:
        known = _approvals(call, session)
        pairs = [pair for pair in known if all_ or pair[1].state == "asked"]
    lines: list[str] = []
    for row, approval in pairs:
        what = output.title(approval.what)
        lines.append(f"{id_suffix(approval.id)}  {approval.state:<6}  {row.name}  {what}")
        if approval.why:
            lines.append(f"          {'':<6}  asked because: {output.title(approval.why)}")
        if approval.by:
            because = f": {output.title(approval.because)}" if approval.because else ""
            by = output.safe(approval.by)
            lines.append(f"          {'':<6}  {approval.state} by {by}{because}")
    call.output.emit([_approval_data(*pair) for pair in pairs], lines or ["nothing waits"])


@verb()
@click.argument("approval")
@session_option
@why_option
def approve(call: CliCall, approval: str, *, session: str | None, why: str) -> None:
    """Allow an action that waits for approval. The approval is valid for one action.

    APPROVAL is the id of the approval, or four or more of its first or last digits. The process
    that asked may have ended: the answer is stored, and the program continues when it repeats the
    call.

    \b
    Example:
      ortet act waiting
      ortet act approve 7d20e6f1 --why "checked the invoice"
    """
    _answer_approval(call, approval, session, why, ok=True)


@verb()
@click.argument("approval")
@session_option
@why_option
def deny(call: CliCall, approval: str, *, session: str | None, why: str) -> None:
    """Deny an action that waits for approval.

    \b
    Example:
      ortet act deny 7d20e6f1 --why "wrong account"
    """
    _answer_approval(call, approval, session, why, ok=False)


for _command in (act_ls, settle, waiting, approve, deny):
    act.add_command(_command)


def _approvals(call: CliCall, session: str | None) -> list[tuple[SessionRow, Approval]]:
    """Return the approvals of the named session, or of all sessions that can still be answered."""
    rows = [find_session(call, session)] if session is not None else call.hub.sessions()
    return [
        (row, approval)
        for row in rows
        if session is not None or row.status not in ("closed", "archived")
        for approval in call.hub.get(row.id).actions.approvals()
    ]


def _approval_data(row: SessionRow, approval: Approval) -> dict[str, Any]:
    return {**output.fields(approval), "session": row.id, "name": row.name}


def _answer_approval(
    call: CliCall, approval: str, session: str | None, why: str, *, ok: bool
) -> None:
    from ortet.integrations._shared.actions import answer_approval
    from ortet.sessions.actions.approvals import unique_approvals

    known = unique_approvals(_approvals(call, session))
    id_ = match_id((one.id for _, one in known), approval)
    row = next((row for row, one in known if one.id == id_), None)
    if row is None:
        raise NotFound(
            "no_approval",
            f"nothing waits for approval {approval!r}: `ortet act waiting` lists them",
        )
    # by="": the answer has the name of the user who runs the command
    answered = answer_approval(call.hub, row.id, id_, by="", ok=ok, why=as_text(why))
    line = f"{'approved' if ok else 'denied'} for {row.name}: {output.title(answered.what)}"
    call.output.emit(_approval_data(row, answered), [line])


@verb()
@click.argument("text")
@session_option
@by_option
def comment(call: CliCall, text: str, *, session: str | None, by: str) -> None:
    """Add a comment to a session, even if another process has it open.

    The comment waits in the inbox of the session. The writer adds it to the journal at its next
    action or commit. For -, the text is read from standard input.

    \b
    Example:
      ortet comment -s fix-42 "leave the grammar alone"
    """
    row = find_session(call, session)
    message = read_text("-") if text == "-" else as_text(text)
    event = call.hub.comment(row.id, message, by=as_text(by))
    call.output.emit(event_data(event), [f"left for {row.name}"])
