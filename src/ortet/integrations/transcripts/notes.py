"""Recognises user messages of Claude Code that are not prompts.

This is a module of its own to keep the list of built-in commands apart from the translation.
"""

from __future__ import annotations

import re

_INTERRUPTED = re.compile(r"\[Request interrupted by user[^\]]*\]")
_OUTPUT = ("<local-command-stdout>", "<local-command-stderr>", "<local-command-caveat>")
_COMMAND = re.compile(r"<command-name>/([\w:-]+)</command-name>")
_BUILTIN_COMMANDS = frozenset(
    (
        *("add-dir", "agents", "bashes", "bug", "clear", "color", "compact", "config", "context"),
        *("continue", "copy", "cost", "doctor", "effort", "exit", "export", "extra-usage", "fast"),
        *("feedback", "help", "hooks", "ide", "keybindings", "login", "logout", "mcp", "memory"),
        *("model", "output-style", "permissions", "plugin", "privacy-settings", "quit"),
        *("release-notes", "rename", "resume", "rewind", "skills", "stats", "status", "tasks"),
        *("terminal-setup", "theme", "todos", "upgrade", "usage", "vim"),
    )
)
"""Commands that Claude Code executes itself; other commands are prompts."""


def note_of(text: str) -> str:
    """Return the record kind of such a message; "" for a prompt."""
    text = text.strip()
    if _INTERRUPTED.fullmatch(text):
        return "interrupted"
    command = _COMMAND.search(text) if text.startswith("<command-") else None
    return (
        "command"
        if text.startswith(_OUTPUT) or (command and command[1] in _BUILTIN_COMMANDS)
        else ""
    )
