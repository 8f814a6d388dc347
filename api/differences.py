"""Where two JSON documents differ."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from kintsugi.core.decoding import join

MISSING = "(missing)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One value that is stored and another one that should be."""

    field: str
    """Path of the value, such as `decision.plan.pipelines[0].num_microbatches`."""
    stored: Any
    replayed: Any


def differences(stored: Any, replayed: Any, path: str = "") -> Iterator[Difference]:
    """Every smallest part in which two JSON values differ, in the order of `stored`; what is missing is `MISSING`."""
    if isinstance(stored, dict) and isinstance(replayed, dict):
        for name in (*stored, *(name for name in replayed if name not in stored)):
            yield from differences(stored.get(name, MISSING), replayed.get(name, MISSING), join(path, name))
    elif isinstance(stored, list) and isinstance(replayed, list):
        for index, (one, other) in enumerate(zip_longest(stored, replayed, fillvalue=MISSING)):
            yield from differences(one, other, join(path, f"[{index}]"))
    elif type(stored) is not type(replayed) or stored != replayed:
        yield Difference(field=path, stored=stored, replayed=replayed)
