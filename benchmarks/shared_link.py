"""One emulated link that all members share, as machines behind one busy switch do: a token bucket on a private loopback.

Needs root, `ip` and `tc`. Everything that any member sends to any other passes through the one bucket.
"""

import os
import subprocess
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from benchmarks.links import delete_leftovers, run_command, unavailable_reason
from kintsugi.core.errors import UnavailableError

_BURST_BYTES = 256 * 1024
_QUEUE_MILLISECONDS = 200


class SharedLink(AbstractContextManager["SharedLink"]):
    """One network namespace for all members, whose loopback passes so many bytes per second in all."""

    def __init__(self, members: Sequence[str], bytes_per_second: float) -> None:
        """Nothing is made before the block is entered."""
        self.addresses = dict.fromkeys(members, "127.0.0.1")
        self._name = f"kintsugi-{os.getpid()}-shared"
        self._rate = f"{round(8 * bytes_per_second)}bit"

    def __enter__(self) -> Self:
        reason = unavailable_reason()
        if reason is not None:
            raise UnavailableError(reason, field="links")
        delete_leftovers()
        try:
            run_command("ip", "netns", "add", self._name)
            run_command("ip", "-n", self._name, "link", "set", "lo", "up")
            shaper = ("tbf", "rate", self._rate, "burst", f"{_BURST_BYTES}b", "latency", f"{_QUEUE_MILLISECONDS}ms")
            run_command("tc", "-n", self._name, "qdisc", "replace", "dev", "lo", "root", *shaper)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def namespace(self, _: str) -> str:
        """The same for all members."""
        return self._name

    def close(self) -> None:
        """Delete the namespace, and with it the link."""
        subprocess.run(["ip", "netns", "delete", self._name], capture_output=True, check=False)
