"""Commands verify, sweep, export, import: maintenance of the store."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from ortet.cli.call import CliCall, verb
from ortet.cli.terminal import output as render
from ortet.errors import Corrupt, Invalid

if TYPE_CHECKING:
    from ortet.hub.repair import RepairReport

MAX_PROBLEMS_SHOWN = 20
"""The maximum number of problems shown."""

FORMATS = ("openai", "openai-responses", "anthropic", "otel")
TOOLS = ("claude-code", "codex")

AGE_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


@verb()
@click.option("--repair", is_flag=True, help="Rebuild rows of effects from the journals first.")
@click.option("--sample", metavar="PERCENT", help="Read only a random part, such as 5%.")
@click.option("--restore", is_flag=True, help="Also restore all branches and tags, and compare.")
def verify(call: CliCall, *, repair: bool, sample: str | None, restore: bool) -> None:
    """Recompute every hash and follow every reference.

    Archives and the files of workspaces on this host are checked too. Nothing is repaired by
    guessing. The exit code is 8 if the store is damaged.

    \b
    Example:
      ortet verify
      ortet verify --repair
      ortet verify --sample 5%
      ortet verify --restore
    """
    part = 1.0 if sample is None else _parse_percent(sample)
    try:
        with call.output.progress("verify") as progress:
            report = call.hub.verify(progress=progress, repair=repair, sample=part, restore=restore)
    except Corrupt as error:  # with --json, the printed error contains the report
        problems = error.details.get("report", {}).get("problems", [])
        if not call.output.json:
            call.output.emit(None, _problem_lines(problems))
        raise
    data = {"ok": True, **render.fields(report)}
    what = f"{_objects(report.objects)}, {render.plural(report.commits, 'commit')}"
    lines = [f"sound: {what}, {render.format_size(report.bytes)}"]
    if restore:
        lines.append(f"restored and compared: the files of {report.restored} states")
    call.output.emit(data, lines)


def _parse_percent(text: str) -> float:
    found = re.fullmatch(r"(\d{1,3}(?:\.\d+)?)%", text)
    if found is None or not 0 < float(found[1]) <= 100:
        raise Invalid("bad_value", f"--sample {text!r}: write a percentage above 0%, as in 5%")
    return float(found[1]) / 100


def _problem_lines(problems: Sequence[Mapping[str, str]]) -> Iterator[str]:
    for problem in problems[:MAX_PROBLEMS_SHOWN]:
        place = " ".join(
            part for part in (problem["where"], problem["oid"][: render.SHORT_ID_DIGITS]) if part
        )
        yield render.safe(f"{place}: {problem['what']}")
    if len(problems) > MAX_PROBLEMS_SHOWN:
        yield f"and {len(problems) - MAX_PROBLEMS_SHOWN} more"


@verb()
@click.option("--apply", is_flag=True, help="Repair the store. Without it, only report.")
def repair(call: CliCall, apply: bool) -> None:
    """Rebuild what a damaged store still allows, and say what is lost.

    Without --apply nothing changes: the report says what would be done. Stop all programs that use
    the store before you apply it. Packs are never changed. A damaged catalog is kept in
    local/damaged; branches, sessions and commits are built again from its readable rows, its
    recovery log and the packs. Commits that nothing refers to get branches lost/….

    \b
    Example:
      ortet repair
      ortet repair --apply
    """
    from ortet.config.environment import open_hub, store_path, store_url
    from ortet.config.repair import repair_store

    root = store_path(store_url(cwd=call.cwd))
    report = repair_store(
        root, lambda place: open_hub(place, cwd=call.cwd, create=False), apply=apply
    )
    call.output.emit(report, _repair_lines(report))


def _repair_lines(report: RepairReport) -> Iterator[str]:
    done = "" if report.applied else "would be "
    yield f"the catalog is {report.catalog}"
    for name, oid in report.branches.items():
        yield render.safe(f"branch {name} {done}set to {render.short_id(oid)}")
    for name in report.sessions:
        yield render.safe(f"session {name} {done}built again from its last commit")
    for name, oid in report.found.items():
        yield render.safe(f"commit {render.short_id(oid)} {done}kept as branch {name}")
    for name in report.rebuilt:
        yield render.safe(f"{name} {done}built again")
    for text in report.lost:
        yield render.safe(f"lost: {text}")
    if not report.applied:
        yield "nothing was changed: run `ortet repair --apply` to do it"


@verb()
@click.argument("words", metavar="[verify] DIRECTORY", nargs=-1)
def backup(call: CliCall, words: tuple[str, ...]) -> None:
    """Write a backup of the store into a directory, or verify one.

    Programs may go on to write meanwhile. The backup shows one moment and is a store of its own. To
    restore, open it with ORTET_URL=DIRECTORY, or copy it to the place of the lost store. A second
    backup into the same directory copies only what is new. `ortet backup verify DIRECTORY` reads
    the whole backup.

    \b
    Example:
      ortet backup /mnt/backup/ortet
      ortet backup verify /mnt/backup/ortet
    """
    if len(words) == 2 and words[0] == "verify":
        _verify_backup(call, words[1])
        return
    if len(words) != 1:
        raise click.UsageError("give one DIRECTORY, or: verify DIRECTORY")
    with call.output.progress("backup") as progress:
        report = call.hub.maintenance.backup(call.cwd / words[0], progress=progress)
    size = render.format_size(report.bytes)
    new = render.plural(report.copied, "file")
    call.output.emit(
        report,
        [f"{render.safe(words[0])}: {new} copied ({size}), {report.reused} were there already"],
    )


def _verify_backup(call: CliCall, directory: str) -> None:
    from ortet.config.environment import open_hub
    from ortet.hub.backup import check_backup

    place = call.cwd / directory
    manifest = check_backup(place)
    with (
        open_hub(place, cwd=call.cwd, create=False) as hub,
        call.output.progress("verify") as progress,
    ):
        report = hub.verify(progress=progress)
    data = {"ok": True, "time": manifest.time, **render.fields(report)}
    what = f"{_objects(report.objects)}, {render.plural(report.commits, 'commit')}"
    call.output.emit(data, [f"sound: {what}, as of {render.format_time(manifest.time)}"])


@verb()
@click.option("--dry-run", is_flag=True, help="Only report what could be freed.")
@click.option(
    "--expire", metavar="AGE", help="First delete reflog entries older than this, such as 30d."
)
def sweep(call: CliCall, dry_run: bool, expire: str | None) -> None:
    """Free the objects that nothing refers to any more.

    Objects of a branch, tag, reflog entry or running writer stay.

    Running writers are not disturbed. Cached files of deleted forks are removed too.

    \b
    Example:
      ortet sweep --dry-run
      ortet sweep --expire 30d
    """
    age = None if expire is None else _parse_age_ns(expire)
    with call.output.progress("sweep") as progress:
        report = call.hub.sweep(dry_run=dry_run, expire_ns=age, progress=progress)
        layers = 0 if dry_run else call.hub.maintenance.tidy()[1]
    data = {**render.fields(report), "bytes_freed": report.bytes_freed, "layers_removed": layers}
    verb_ = "would free" if dry_run else "freed"
    line = f"{verb_} {render.format_size(report.bytes_freed)}: {_objects(report.removed)} of nobody"
    call.output.emit(data, [f"{line}, {report.kept} kept"])


@verb()
@click.argument("words", metavar="REF... FILE", nargs=-1)
@click.option(
    "--format",
    type=click.Choice(FORMATS),
    help="Export a session in this format: its messages, or spans.",
)
@click.option("-o", "--output", metavar="FILE", help="With --format: write to this file.")
@click.option("--whole", is_flag=True, help="With --format: include messages that were compacted.")
@click.option("--content", is_flag=True, help="With --format otel: include the text of messages.")
def export(
    call: CliCall,
    words: tuple[str, ...],
    *,
    format: str | None,
    output: str | None,
    whole: bool,
    content: bool,
) -> None:
    """Write commits, with all their objects, into one file.

    With --format, write the conversation of a session as messages for a model API, or its events as
    spans of OpenTelemetry; without -o, to standard output.

    \b
    Example:
      ortet export HEAD work.bundle
      ortet export proj proj/1 both.bundle
      ortet export fix-42 --format anthropic -o messages.json
    """
    if format is not None:
        from ortet.cli.import_export import export_session

        export_session(call, words, format, output=output, whole=whole, content=content)
        return
    if output is not None or whole or content:
        raise click.UsageError("-o, --whole and --content go with --format")
    *refs, file = words or ("",)
    if not file:
        raise click.UsageError("Missing argument 'REF... FILE'")
    if not refs:
        raise click.UsageError(f"FILE is missing: give the file to write after {file!r}")
    names = _portable_refs(call, refs)
    call.warn_uncommitted(*refs)
    with call.output.progress("export") as progress:
        report = call.hub.export(names, file, progress=progress)
    call.output.emit(
        report,
        [f"{render.safe(file)}: {_objects(report.objects)}, {render.format_size(report.size)}"],
    )


@verb("import")
@click.argument("file", required=False)
@click.option("--from", "tool", type=click.Choice(TOOLS), help="FILE is a transcript of this tool.")
@click.option(
    "--all", "everything", is_flag=True, help="With --from: import all transcripts of the tool."
)
@click.option("--name", metavar="NAME", help="With --from: the name of the session.")
@click.option(
    "--agent",
    default="default",
    metavar="NAME",
    help="With --from: the agent that the session belongs to.",
)
@click.option("--dry-run", is_flag=True, help="With --from: only report what would be imported.")
def import_(
    call: CliCall,
    file: str | None,
    *,
    tool: str | None,
    everything: bool,
    name: str | None,
    agent: str,
    dry_run: bool,
) -> None:
    """Import the commits of a bundle, or a transcript of a coding agent.

    A bundle is verified as a whole before a branch is made. A branch whose name is taken gets a
    number. A transcript becomes a session, and importing it again adds its new messages. FILE may
    be a directory of transcripts. Without FILE, the tool's newest transcript of this directory is
    imported.

    \b
    Example:
      ortet import work.bundle
      ortet import --from claude-code
      ortet import --from codex ~/.codex/sessions/2026/01/31
    """
    if tool is not None:
        from ortet.cli.import_export import ImportOptions, import_transcripts

        options = ImportOptions(
            tool, file, everything=everything, name=name, agent=agent, dry_run=dry_run
        )
        import_transcripts(call, options)
        return
    if file is None:
        raise click.UsageError("Missing argument 'FILE'")
    if everything or name is not None or dry_run:
        raise click.UsageError("--all, --name and --dry-run go with --from")
    hub = call.open_hub(create=True)
    with call.output.progress("import") as progress:
        imported = hub.import_(file, progress=progress)
    lines = [f"{name} is {render.short_id(oid)}" for name, oid in imported.items()]
    call.output.emit({"branches": imported}, lines)


def _portable_refs(call: CliCall, refs: Sequence[str]) -> list[str]:
    """Return branch and tag names unchanged, and other refs as ids.

    HEAD and similar refs have a meaning only here.
    """
    branch = call.branch()
    names = [branch if ref in ("HEAD", "@") and branch else ref for ref in refs]
    known = {head.name for head in (*call.hub.refs.branches(), *call.hub.refs.tags())}
    return [name if name in known else call.resolve(name).hex() for name in names]


def _objects(count: int) -> str:
    return render.plural(count, "object")


def _parse_age_ns(text: str) -> int:
    match = re.fullmatch(r"(\d+)([smhdw])", text)
    if match is None:
        raise Invalid(
            "bad_age", f"--expire {text!r}: write a number and s, m, h, d or w, as in 30d"
        )
    return int(match[1]) * AGE_UNIT_SECONDS[match[2]] * 1_000_000_000
