"""Guesses from name and value that a variable is a secret. Only its name is stored then."""

from __future__ import annotations

import math
import re
from collections import Counter

_NAMES = re.compile(
    r"""
    secret|token|passw|passphrase|pwd$|credential|cookie|private|auth|bearer|signature|salt
    |(?:^|_)(?:api|access|account|client|encryption|master|service|session|signing|ssh)_?key
    |(?:^|_)(?:key|pass|pat|pin|psk|dsn|otp|jwt|license)(?:_|$)
    |connection_?string|webhook|database_url
    """,
    re.IGNORECASE | re.VERBOSE,
)
_HARMLESS = frozenset({"PWD", "OLDPWD", "SSH_AUTH_SOCK", "XAUTHORITY"})
_VALUES = re.compile(
    r"""
    -----BEGIN[ A-Z]*(?:PRIVATE\ KEY|CERTIFICATE)
    |\b(?:sk|pk|rk)[-_](?:live|test|ant|proj|or)?[-_A-Za-z0-9]{12,}
    |\b(?:gh[oprsu]_|github_pat_|glpat-|hf_|npm_|pypi-|dop_v1_|shpat_|xapp-|xox[abeoprs]-)[-_A-Za-z0-9]{8,}
    |\b(?:AKIA|ASIA)[A-Z0-9]{12,}
    |\bAIza[-_A-Za-z0-9]{20,}
    |\beyJ[-_A-Za-z0-9]{8,}\.[-_A-Za-z0-9]+
    |[a-z][a-z0-9+.-]*://[^/\s:@]*:[^/\s@]+@
    |\b(?:Bearer|Basic)\ [-_=+/.A-Za-z0-9]{8,}
    |(?:password|passwd|pwd|secret|token|api_?key)\s*[=:]\s*\S
    """,
    re.IGNORECASE | re.VERBOSE,
)
_WORD = re.compile(r"[-_+=A-Za-z0-9]{20,}")
_MIN_ENTROPY_BITS = 3.5
"""Bits per character. Natural language has fewer; keys in base64 have as many or more."""


def looks_secret(name: str, value: str) -> bool:
    """Return True if a value may be a secret and must not be stored.

    In doubt the answer is True: storing only the name does no harm.
    """
    if name.upper() in _HARMLESS:
        return False
    return bool(_NAMES.search(name) or _VALUES.search(value)) or any(
        _is_random(word) for word in _WORD.findall(value)
    )


def is_secret(name: str, value: str) -> bool:
    """Return True if a value is certainly a secret, by its name and by its form."""
    if name.upper() in _HARMLESS or not _NAMES.search(name):
        return False
    return bool(_VALUES.search(value)) or any(_is_random(word) for word in _WORD.findall(value))


def _is_random(word: str) -> bool:
    if not any(c.isdigit() for c in word) or not any(c.isalpha() for c in word):
        return False
    counts, size = Counter(word), len(word)
    bits = -sum(count / size * math.log2(count / size) for count in counts.values())
    limit = 3.0 if all(c in "0123456789abcdefABCDEF-" for c in word) else _MIN_ENTROPY_BITS
    return bits >= limit
