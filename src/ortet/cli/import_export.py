"""`import --from` and `export --format`: transcripts of other programs, and message formats."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ortet.cli.call import CliCall
from ortet.cli.session_args import read_session
from ortet.cli.terminal import output as render
from ortet.errors import Invalid, NotFound, Unavailable
from ortet.integrations import otel_export
from ortet.integrations.transcripts import locate
from ortet.integrations.transcripts.importer import ImportResult, import_transcript

if TYPE_CHECKING:
    from ortet.integrations.transcripts.locate import TranscriptFile
    from ortet.sessions.reader import SessionReader

_MAX_SHOWN = 10
"""The maximum number of transcripts and files shown."""


class ImportOptions(msgspec.Struct, frozen=True):
    """The transcripts to import. Without a path, the tool's newest transcript of this directory."""

    tool: str
    path: str | None
    everything: bool = False
    name: str | None = None
    agent: str = "default"
    dry_run: bool = False


def import_transcripts(call: CliCall, options: ImportOptions) -> None:
    """Import each transcript into a session, together with the transcripts of its sub-agents."""
    chosen, others = _choose_transcripts(call, options)
    if options.name is not None and len(chosen) > 1:
        raise Invalid("bad_usage", f"{len(chosen)} transcripts cannot have one name: leave it out")
    hub = call.open_hub(create=True)
    results: list[ImportResult] = []
    with call.output.progress("import") as progress:
        for number, transcript in enumerate(chosen):
            progress(number, len(chosen))
            for path in (
                Path(transcript.path),
                *locate.agents_of(options.tool, Path(transcript.path)),
            ):
                results += import_transcript(
                    hub,
                    options.tool,
                    path,
                    name=options.name or "",
                    agent=options.agent,
                    dry_run=options.dry_run,
                )
    data = {
        "sessions": [render.fields(one) for one in results],
        "others": [render.fields(one) for one in others],
        "dry_run": options.dry_run,
    }
    call.output.emit(data, [*_lines(results, dry_run=options.dry_run), *_other_lines(others)])


def _choose_transcripts(
    call: CliCall, options: ImportOptions
) -> tuple[list[TranscriptFile], list[TranscriptFile]]:
    """Return the transcripts to import, and others of the same directory."""
    if options.path is not None:
        if options.everything:
            raise Invalid("bad_usage", "FILE and --all exclude each other: leave one out")
        chosen = locate.transcripts_at(options.tool, Path(options.path))
        if not chosen:
            raise NotFound("no_transcript", f"there is no transcript in {options.path}")
        return chosen, []
    root = locate.default_directory(options.tool)
    every = locate.find_transcripts(options.tool, root)
    if options.everything:
        return every, []
    in_directory = locate.filter_by_directory(options.tool, every, call.cwd)
    if in_directory:
        return in_directory[:1], in_directory[1:]
    if not call.output.json:
        call.output.emit(None, _table(every))
    raise NotFound(
        "no_transcript",
        f"{root} has no transcript of this directory ({render.plural(len(every), 'transcript')} of "
        "others): give the FILE of one, or --all",
        transcripts=[render.fields(one) for one in every],
    )


def _lines(results: Sequence[ImportResult], *, dry_run: bool) -> Iterator[str]:
    for result in results:
        verb = "would be taken in" if dry_run else "taken in"
        yield f"{render.safe(result.name)}: {result.added} of {_counted(result)} {verb}"
        if result.parent:
            yield f"  of {render.safe(result.parent)}"
        counts = [
            render.plural(count, noun)
            for count, noun in (
                *(
                    (result.messages, "message"),
                    (result.thoughts, "thought"),
                    (result.deeds, "effect"),
                ),
                (len(result.files), "file"),
            )
            if count
        ]
        if counts:
            yield f"  {', '.join(counts)}"
        for path in result.files[:_MAX_SHOWN]:
            yield f"  changed {render.safe(path)}"
        if len(result.files) > _MAX_SHOWN:
            yield f"  and {len(result.files) - _MAX_SHOWN} more"
        if result.unknown:
            how = "it is" if result.unknown == 1 else "they are"
            yield f"  {render.plural(result.unknown, 'line')} not understood, kept as {how}"
        if result.rest:
            yield (
                f"  its last line is not whole yet ({render.format_size(result.rest)}): import it "
                "again"
            )


def _counted(result: ImportResult) -> str:
    return render.plural(result.lines, "line")


def _other_lines(others: Sequence[TranscriptFile]) -> list[str]:
    if not others:
        return []
    return [f"{render.plural(len(others), 'older transcript')} of this directory:", *_table(others)]


def _table(files: Sequence[TranscriptFile]) -> list[str]:
    rows = [
        (render.format_time(one.changed), render.format_size(one.size), render.safe(one.path))
        for one in files[:_MAX_SHOWN]
    ]
    more = [f"and {len(files) - _MAX_SHOWN} more"] if len(files) > _MAX_SHOWN else []
    return [*render.table(rows), *more]


def export_session(
    call: CliCall,
    words: Sequence[str],
    format: str,
    *,
    output: str | None,
    whole: bool,
    content: bool,
) -> None:
    """Write the messages or spans of a session to a file or to standard output."""
    if len(words) > 1:
        raise click.UsageError("--format writes one session: name one")
    if (content and format != "otel") or (whole and format == "otel"):
        raise click.UsageError("--content goes with --format otel, --whole with the others")
    view = read_session(call, words[0] if words else None)
    data = (
        otel_export.spans_of(view, content=content)
        if format == "otel"
        else _export_messages(view, format, whole)
    )
    text = render.to_json(data)
    if output is None or output == "-":
        with call.output.paged_output():
            sys.stdout.write(f"{text}\n")
        return
    _write(Path(output), text)
    summary = {"session": view.id, "format": format, "path": str(Path(output).absolute())}
    call.output.emit(summary, [f"{render.safe(view.name)} -> {render.safe(output)}"])


def _export_messages(view: SessionReader, format: Any, whole: bool) -> Any:
    return view.conversation.export_messages(format, whole=whole)


def _write(path: Path, text: str) -> None:
    """Write a file atomically."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_text(f"{text}\n", encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise Unavailable(
            "io_error", f"{path} cannot be written ({error.strerror}): check place and permissions"
        ) from error
