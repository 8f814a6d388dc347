"""Texts of others on their way to people: fit to be shown wherever they are shown."""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from kintsugi.core.checks import LONGEST_NAME

LONGEST_TEXT = 4_000
"""Characters of one text that problem documents and the log tell; a body may hold millions."""

_PYDANTIC_ADVICE = re.compile(r"Input should be (.+?)(?:, (?:unable|got) .*)?")
"""What pydantic says of a value, and how it came to that."""


def advice(message: str) -> str:
    """What pydantic says of a value, as an error of ours would: what it must be."""
    match = _PYDANTIC_ADVICE.fullmatch(message)
    return f"must be {match[1]}" if match else message


def shortened(text: str) -> str:
    """`text`, where it is too long its beginning and how long it is."""
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}... ({len(text):,} characters)"


def as_name(text: str) -> str:
    """`text`, where it is too long for a name its beginning and its digest, so that others have other names."""
    digest = hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()
    return text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - len(digest) - 1]} {digest}"


def escaped(text: str) -> str:
    """`text` with whatever would steer a terminal written as Python does; its lines stay."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() or letter in "\n\t" else ascii(letter)[1:-1] for letter in text)


def escaped_line(_logger: object, _method: str, line: Mapping[str, Any]) -> dict[str, Any]:
    """A processor of structlog for lines that a terminal may show."""
    return {name: escaped(value) if isinstance(value, str) else value for name, value in line.items()}
