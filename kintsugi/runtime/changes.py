"""What of a job differs from the one that a folder was begun with, for the refusal to say it."""

from collections.abc import Mapping


def first_change(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """The first thing that differs, in brackets with a space before; empty where nothing is known to.

    Args:
        before: what the folder's job is told by; nothing where an earlier version began it.
        now: the same of the job at hand.
    """
    known = {**now, **before} if before else {}
    for what in known:
        was, is_now = before.get(what, "not there"), now.get(what, "not there")
        if was != is_now:
            return f" ({what}: {was} before, {is_now} now)"
    return ""
