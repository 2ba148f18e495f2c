"""Changes the layers below the workspace of a machine, while no process uses it.

A machine switches layers to restore an image that differs in many files, and to turn its upper
directory into a layer that forks share.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from ortet._util.failpoints import failpoint
from ortet.errors import Conflict, Unavailable
from ortet.history.records import Image, System
from ortet.machines.base import Report
from ortet.machines.overlay.files import OverlayFiles
from ortet.machines.overlay.ignored_files import add_ignored_layer
from ortet.machines.overlay.layers.home import LayerLayout, layer_name
from ortet.machines.overlay.layers.store import MAX_STACK_DEPTH, LayerStack, count_changes
from ortet.machines.overlay.restore import count_written_and_removed
from ortet.machines.restore.compare_images import make_plan

_MAX_REWRITTEN_NAMES = 200  # with more differences, other layers are faster than writing files
_MAX_PRIVATE_STACK_DEPTH = 60  # for a machine with layers that hold ignored files


class LayerSwitcher:
    """Switches the layers of one machine.

    `restart` ends all processes of the machine and starts it again with a layout: layers below a
    root directory cannot be changed in place. While `paused_stack` is set, the workspace is not
    mounted; `resume` mounts it on these layers.
    """

    def __init__(self, files: OverlayFiles, restart: Callable[[LayerLayout], None]) -> None:
        self.paused_stack: LayerStack | None = None
        self._files = files
        self._context = files.context
        self._home = files.home
        self._restart = restart

    # Forks.

    def shared_stack(self, image: Image, is_current: Callable[[], bool]) -> LayerStack:
        """Return layers for the committed image, which this machine may have changed since.

        `is_current` tells whether the files still equal the image. The workspace may be unmounted
        afterwards, until `resume`.
        """
        layout = self._files.layout
        stack, upper = layout.stack, self._home.upper(layout.upper)
        same = (stack.root, stack.links) == (image.root, image.links)
        if same and not (layout.ignoring and os.listdir(upper)):
            return stack
        if is_current() and self._pause(image):
            assert self.paused_stack is not None
            return self.paused_stack
        return self._context.layer_store.ensure_stack(image, stack)[0]

    def resume(self) -> None:
        """Continue with a new upper directory, if the workspace is unmounted."""
        stack, self.paused_stack = self.paused_stack, None
        if stack is None:
            return
        layout = self._files.layout
        new = replace(layout, upper=layout.upper + 1, stack=stack)
        try:
            self._home.make_upper(new.upper, stack, self._context.layer_store)
            self._mount(new)
            failpoint("overlay.mounted")
            self._files.set_layout(new)
        except BaseException:
            self._undo_pause()
            raise

    def start_new_upper(self, image: Image) -> None:
        """Turn the upper directory, whose merged state is `image`, into a layer.

        Nothing changes while a process has a file of the workspace open.
        """
        with self._context.layer_store.prevent_prune():
            self._pause(image)
            self.resume()

    def _pause(self, image: Image) -> bool:
        """Turn the upper directory into a layer; `resume` continues with a new one.

        Returns False, without any change, while a process has a file of the workspace open.
        """
        old, bases = self._files.layout, self._context.layer_store
        deep = len(old.stack.layers) >= (
            _MAX_PRIVATE_STACK_DEPTH if old.ignoring else MAX_STACK_DEPTH
        )
        flat = bases.ensure_stack(image, old.stack)[0] if deep else None
        if flat is not None:
            flat, _ = add_ignored_layer(self._context, flat, self._files.ignored_files())
        if not self._unmount():
            return False
        try:
            self.paused_stack = flat or bases.adopt(
                self._home.upper(old.upper),
                layer_name(self._files.spec.id, old.upper),
                below=old.stack,
                image=image,
                shared=not old.ignoring,
            )
        except BaseException:
            self._undo_pause()
            raise
        failpoint("overlay.frozen")
        return True

    def _undo_pause(self) -> None:
        """Return to the layout before `_pause`."""
        old = self._files.layout
        name = layer_name(self._files.spec.id, old.upper)
        self._context.layer_store.undo_adopt(name, self._home.upper(old.upper))
        self._mount(old)

    # Restores.

    def restore(
        self, current: Image, target: Image, paths: Sequence[bytes] | None = None
    ) -> Report:
        """Make the files equal to `target`, by other layers or by writing the differences.

        `current` is the image of the files as they are now. Raises Conflict("busy") if files
        outside of the workspace must change while processes run.
        """
        files = self._files
        if paths is not None:
            return files.restore(current, target, paths)
        system, losses = self._context.system_for(files.spec, target)
        outer = system != current.system
        if outer and not files.is_idle():
            raise _busy_error()
        report = None
        layers = not files.layout.ignoring and (outer or self._is_far(current, target))
        if layers and not self._changes_ignore_rules(current, target):
            report = self._switch(current, target, system, outer=outer)
        if report is None:
            report = files.restore(current, target, None)
            if outer:
                layout = files.layout
                self._restart(replace(layout, system=system, outer=layout.outer + 1))
        return replace(report, losses=report.losses + losses)

    def _switch(
        self, current: Image, target: Image, system: System | None, *, outer: bool
    ) -> Report | None:
        """Switch to the layers of another image; with `outer` also to this system difference.

        Returns None, without any change, while files are open.
        """
        old, home, bases = self._files.layout, self._home, self._context.layer_store
        with bases.prevent_prune():
            stack, losses = bases.ensure_stack(target, old.stack)
            new = replace(old, upper=old.upper + 1, stack=stack)
            losses += home.make_upper(new.upper, stack, bases)
            if outer:
                new = replace(new, system=system, outer=old.outer + 1)
                self._restart(new)
            elif not self._unmount():
                home.remove_unused_dirs(old)
                return None
            else:
                self._mount(new, fallback=old)
                failpoint("overlay.mounted")
                self._files.set_layout(new)
                failpoint("overlay.switched")
        home.remove_unused_dirs(new)
        written, removed = count_written_and_removed(self._context.trees, current.root, target.root)
        return Report(written=written, removed=removed, losses=losses)

    def _is_far(self, current: Image, target: Image) -> bool:
        apart = count_changes(
            self._context.trees, current.root, target.root, limit=_MAX_REWRITTEN_NAMES
        )
        return apart > _MAX_REWRITTEN_NAMES

    def _changes_ignore_rules(self, current: Image, target: Image) -> bool:
        """Return True if ignore files change.

        Then files may stay that the layers of the target do not have.
        """
        bases = self._context.layer_store
        return make_plan(
            self._context.trees, bases.image_files(current), bases.image_files(target)
        ).has_new_rules

    # Mounts.

    def _unmount(self) -> bool:
        """Unmount the workspace. Return False while a process of machine or host has it open."""
        files = self._files
        return files.is_idle() and bool(files.process.ask({"do": "unmount"})[0]["done"])

    def _mount(self, layout: LayerLayout, fallback: LayerLayout | None = None) -> None:
        self._home.make_work_dir(layout.upper)
        reply, _ = self._files.process.ask(
            {"do": "mount", "options": self._context.workspace_mount_options(layout)}
        )
        if "error" in reply:
            if fallback is not None:
                self._mount(fallback)
            raise mount_refused_error(reply["error"])


def mount_refused_error(reason: str) -> Unavailable:
    """Return the error for layers that the kernel did not mount."""
    return Unavailable(
        "mount_refused",
        f"the kernel refused new layers ({reason}); the machine is as it was: try again",
    )


def _busy_error() -> Conflict:
    return Conflict(
        "busy",
        "processes of this machine are running, and what it changed outside of the workspace "
        "cannot be put back under them: stop them first, or close the workspace",
    )
