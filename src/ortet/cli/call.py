"""One invocation of the command line: its options, its output, its store and its workspace."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from ortet.cli.terminal.output import CliOutput
from ortet.errors import Invalid, NotFound, OrtetError

if TYPE_CHECKING:
    from ortet.cli.daemon.cache import DaemonCache
    from ortet.config.pointer_file import Pointer
    from ortet.hub.hub import Hub
    from ortet.ids import Oid
    from ortet.workspaces.table import WorkspaceRow
    from ortet.workspaces.workspace import Workspace

F = TypeVar("F", bound=Callable[..., Any])


class HubOpener(Protocol):
    """Opens a hub. The context manager closes the hub unless something else keeps it open."""

    def __call__(
        self, url: str | None, *, cwd: Path, create: bool
    ) -> AbstractContextManager[Hub]: ...


def open_for_one_command(url: str | None, *, cwd: Path, create: bool) -> Hub:
    """Open a hub that starts no threads, because the process ends after one command."""
    from ortet.config.environment import open_hub

    return open_hub(url, cwd=cwd, create=create, one_shot=True)


class CliCall:
    """The context of one command. A process creates one.

    The store is opened at first use and closed at the end of the `with` block.

    Args:
        opener: How to open the store.
        daemon_cache: The state that stays open after this call, if the host agent runs it. It also
            opens the store.
    """

    def __init__(
        self,
        opener: HubOpener = open_for_one_command,
        *,
        daemon_cache: DaemonCache | None = None,
    ) -> None:
        self.output = CliOutput()
        self.daemon_cache = daemon_cache
        self._open: HubOpener = daemon_cache.open if daemon_cache is not None else opener
        self._stack = ExitStack()
        self._hub: Hub | None = None
        self.session_id = ""
        """The id of the session that the command is about, once it is known."""

    def __enter__(self) -> CliCall:
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            self._stack.__exit__(*error)
        finally:
            self.output.close_pager()

    # location

    def enter(self, directory: str) -> None:
        """Change to the directory of -C. Relative paths in later arguments refer to it."""
        try:
            os.chdir(directory)
        except OSError as error:
            raise NotFound(
                "no_directory", f"{directory}: {error.strerror}; give -C a directory that exists"
            ) from error

    @property
    def cwd(self) -> Path:
        """The working directory."""
        from ortet.config.environment import working_directory

        return working_directory()

    @property
    def hub(self) -> Hub:
        """The hub of this directory. Raises NotFound("no_store") if the store does not exist."""
        if self._hub is None:
            self._hub = self.open_hub(create=False)
        return self._hub

    @property
    def has_hub(self) -> bool:
        """True if the hub of this directory is open."""
        return self._hub is not None

    def create_hub(self) -> Hub:
        """Open the hub of this directory, and create its store if there is none."""
        self._hub = self.open_hub(create=True)
        return self._hub

    def open_watching_hub(self) -> None:
        """Open the hub for a long-running command, so that it follows changes.

        Call it before `hub`.
        """
        from ortet.config.environment import open_hub

        self._hub = self._stack.enter_context(open_hub(cwd=self.cwd, create=False))

    def open_hub(self, url: str | None = None, *, create: bool) -> Hub:
        """Open a hub that is closed at the end of the call."""
        return self._stack.enter_context(self._open(url, cwd=self.cwd, create=create))

    def local_store_path(self) -> Path:
        """Return the store's directory on this host.

        For a remote store it is the directory of its local part, and the store is opened to find
        it. The directory need not exist.
        """
        from ortet.config.environment import store_path, store_url
        from ortet.config.store_url import is_networked

        if self._hub is not None:
            return self._hub.root
        url = store_url(cwd=self.cwd)
        return self.hub.root if is_networked(url) else store_path(url)

    def pointer(self) -> Pointer | None:
        """Return the nearest pointer file, or None."""
        from ortet.config.pointer_file import find_pointer

        return find_pointer(self.cwd)

    def workspace(self, name: str | None = None, *, writes: bool = True) -> Workspace:
        """Open the named workspace, or the workspace of this directory.

        If `writes`, also correct the pointer file: a copied directory must not use the history of
        the original. A command that only reads leaves the pointer unchanged.
        """
        workspace = self._open_workspace(name, writes=writes)
        cache = self._cache_of_hub()
        return cache.keep_workspace(workspace) if cache is not None else workspace

    def _open_workspace(self, name: str | None, *, writes: bool) -> Workspace:
        if name is not None:
            row = self.hub.workspaces.table.need(name)
            return self._cached_workspace(row) or self.hub.workspace(name=name)
        pointer = self.pointer()
        if pointer is None:
            raise _no_workspace(self.cwd)
        named = self._pointer_workspace(pointer)
        located = self.hub.workspaces.locate(named or "", pointer.directory)
        workspace = self._cached_workspace(located) if located else None
        workspace = workspace or self.hub.workspaces.reopen(named or "", pointer.directory)
        if writes and named is not None and workspace.name != named:
            from ortet.config.pointer_file import write_pointer

            write_pointer(pointer.directory, self.hub.url, workspace.name)
        return workspace

    @contextmanager
    def timed(self, path: str) -> Iterator[None]:
        """Record the duration of a command, except for commands that wait for something else."""
        from ortet.cli import slow_calls

        if path.partition(" ")[0] in slow_calls.WAITING_VERBS:
            yield
            return
        with slow_calls.time_call(path, "cli") as timing:
            try:
                yield
            finally:
                timing.root = self._hub.root if self._hub is not None else None
                timing.session = self.session_id

    def _cached_workspace(self, row: WorkspaceRow) -> Workspace | None:
        """Return the workspace of this row if an earlier command left it open."""
        cache = self._cache_of_hub()
        return cache.cached_workspace(row) if cache is not None else None

    def _cache_of_hub(self) -> DaemonCache | None:
        """Return the cache of the host agent, if the agent's hub is the one in use."""
        cache = self.daemon_cache
        return cache if cache is not None and self.hub.root == cache.store else None

    def _pointer_workspace(self, pointer: Pointer) -> str | None:
        """Return the workspace that a pointer names. None if another store is in use."""
        from ortet.config.environment import is_pointer_to

        return pointer.workspace if is_pointer_to(pointer, self.hub.url) else None

    def row(self, name: str | None = None) -> WorkspaceRow:
        """Return the row of the named workspace, or of this directory's.

        It is enough to read history.
        """
        if name is not None:
            return self.hub.workspaces.table.need(name)
        pointer = self.pointer()
        row = self._locate_row(pointer) if pointer else None
        if row is None:
            raise _no_workspace(self.cwd)
        return row

    def branch(self) -> str | None:
        """Return the branch that HEAD means here. None outside a workspace."""
        pointer = self.pointer()
        if pointer is None:
            return self._branch_without_pointer()
        if row := self._locate_row(pointer):
            return row.name
        name = self._pointer_workspace(pointer)  # the workspace was dropped, but its branch remains
        return name if name and self.hub.refs.get(name) else None

    def _branch_without_pointer(self) -> str | None:
        """Return the branch of a directory that a program made a workspace.

        Such a directory has no pointer file: only `ortet init` writes one.
        """
        here = self.cwd.resolve()
        for directory in (here, *here.parents):
            if row := self.hub.workspaces.table.find_at(directory, "inplace", "folder"):
                return row.name
        return None

    def _locate_row(self, pointer: Pointer) -> WorkspaceRow | None:
        return self.hub.workspaces.locate(self._pointer_workspace(pointer) or "", pointer.directory)

    def resolve(self, ref: str, branch: str | None = None) -> Oid:
        """Return the commit that `ref` names.

        HEAD means `branch`, or the branch of this directory.
        """
        return self.hub.refs.resolve(ref, default_branch=branch or self.branch())

    def workspace_relative(self, path: str, name: str | None) -> str:
        """Convert a path as the user wrote it into a path relative to the workspace."""
        pointer = self.pointer()
        if name is not None or pointer is None:
            return os.path.normpath(path)
        # The directory may be reached through a symlink: compare real paths, but keep the last
        # name.
        full = self.cwd / path
        real = full.resolve()
        if full.name != "..":
            real = Path(os.path.realpath(full.parent)) / full.name
        relative = os.path.relpath(real, os.path.realpath(pointer.directory))
        if relative == ".." or relative.startswith("../"):
            raise Invalid("bad_path", f"{path} is outside the workspace {pointer.directory}")
        return relative

    def warn_uncommitted(self, *refs: str) -> None:
        """Warn about uncommitted changes in forks that the user named."""
        if self.output.json or self.output.quiet:
            return
        for ref in refs:
            try:
                with self.hub.workspaces.private_workspace(ref) as private:
                    dirty = private is not None and not private.status().clean
            except OrtetError:  # in use elsewhere, or unusable here: skip the warning
                continue
            if dirty:
                self.output.note(
                    f"{ref} has changes that are not committed: `ortet commit -w {ref}` records "
                    "them"
                )


def _no_workspace(here: Path) -> NotFound:
    return NotFound(
        "no_workspace",
        f"{here} is in no workspace: run `ortet init` in the directory to keep, or choose "
        "one with -w (`ortet branch` lists them)",
    )


def common_options(function: F, *, top: bool = False) -> F:
    """Add --json, -q, --no-pager and --color to a command, before and after its name.

    Only the `top` command shows --no-pager and --color in its help.
    """
    for flags, name, text in (
        (("-q", "--quiet"), "quiet", "Print nothing but errors."),
        (("--json",), "json", "Print the answer, or the error, as JSON."),
    ):
        function = click.option(
            *flags, name, is_flag=True, expose_value=False, callback=_switch_on, help=text
        )(function)
    function = click.option(
        "--no-pager",
        "pages",
        is_flag=True,
        expose_value=False,
        callback=_switch_off,
        hidden=not top,
        help="Do not page long answers.",
    )(function)
    return click.option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        expose_value=False,
        callback=_choose,
        hidden=not top,
        help="Colour the answer; auto: on a terminal.",
    )(function)


def _switch_on(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        setattr(ctx.obj.output, str(param.name), True)


def _switch_off(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        setattr(ctx.obj.output, str(param.name), False)


def _choose(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        setattr(ctx.obj.output, str(param.name), value)


def group(function: Callable[[], None]) -> click.Group:
    """Make a command group with the common options. Without a subcommand it shows its help."""

    @functools.wraps(function)
    def bare(ctx: click.Context) -> None:
        if ctx.invoked_subcommand is None:
            click.echo(ctx.get_help())

    return click.group(invoke_without_command=True)(common_options(click.pass_context(bare)))


def verb(
    name: str | None = None, **settings: Any
) -> Callable[[Callable[..., None]], click.Command]:
    """Make a command with the common options. Its function gets the CliCall first."""

    def decorate(function: Callable[..., None]) -> click.Command:
        return click.command(name, click.Command, **settings)(common_options(wrapped(function)))

    def wrapped(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def begin(call: CliCall, *arguments: Any, **options: Any) -> None:
            path = click.get_current_context().command_path
            call.output.begin_command(path)
            with call.timed(path.partition(" ")[2]):
                function(call, *arguments, **options)

        return click.pass_obj(begin)

    return decorate


workspace_option = click.option(
    "-w", "--workspace", "name", metavar="NAME", help="The workspace or fork, such as proj/1."
)


def as_text(message: str) -> str:
    """Return a command line argument as valid text. Bytes that are not UTF-8 are replaced."""
    try:
        message.encode()
    except UnicodeEncodeError:
        return os.fsencode(message).decode("utf-8", "replace")
    return message
