"""Which planner this is: its version, and a digest of what it consists of, for a version may live long while its sources change."""

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from kintsugi.core.version import __version__

PACKAGES = ("estimator", "kintsugi/core", "planner", "restorer")
"""Whatever a decision is computed by."""
DIGITS = 12
"""Of the digest, in hexadecimal."""
LONGEST_NAME = 32
"""Characters: what the database keeps of it."""


@cache
def planner_name() -> str:
    """The version, and the beginning of the SHA-256 of all sources when it was first asked for, such as `0.1.0+93c1d0a4e85b`."""
    digest = sources_digest(Path(__file__).parents[1])[:DIGITS]
    return f"{__version__[: LONGEST_NAME - DIGITS - 1]}+{digest}"


def sources_digest(root: Path, packages: Sequence[str] = PACKAGES) -> str:
    """SHA-256 of all sources of these packages below a folder, with their names."""
    digest = hashlib.sha256()
    for path in sorted(path for package in packages for path in (root / package).rglob("*.py")):
        digest.update(f"{path.relative_to(root).as_posix()}\n".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
