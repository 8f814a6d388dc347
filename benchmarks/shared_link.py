"""One emulated link that all members share, as machines behind one busy switch do: a token bucket on a private loopback.

Needs root, `ip` and `tc`. Everything that any member sends to any other passes through the one bucket.
"""

from collections.abc import Sequence

from benchmarks.links import Namespaces, name_of, run_command, shape

_BURST_BYTES = 256 * 1024


class SharedLink(Namespaces):
    """One network namespace for all members, whose loopback passes so many bytes per second in all."""

    def __init__(self, members: Sequence[str], bytes_per_second: float) -> None:
        """Nothing is made before the block is entered."""
        self.addresses = dict.fromkeys(members, "127.0.0.1")
        self._name = name_of("shared")
        self._bytes_per_second = bytes_per_second
        super().__init__((self._name,))

    def namespace(self, _: str) -> str:
        """The same for all members."""
        return self._name

    def make(self) -> None:
        """A loopback that is shaped."""
        run_command("ip", "netns", "add", self._name)
        run_command("ip", "-n", self._name, "link", "set", "lo", "up")
        shape(self._name, "lo", 8 * self._bytes_per_second, burst_bytes=_BURST_BYTES)
