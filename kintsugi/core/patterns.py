"""Things that somebody asks for by their names."""

from collections.abc import Sequence
from fnmatch import fnmatchcase


def is_asked(name: str, patterns: Sequence[str]) -> bool:
    """Whether a name is like one of some patterns, as shells have them; every name is where there are none."""
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
