"""Who takes the short, urgent messages of neighbours, by their kind."""

from kintsugi.runtime.overlay.links import Hears
from kintsugi.runtime.overlay.messages import Message


class Control:
    """Hands control messages to whoever asked for their kind; others are passed over (a newer neighbour may know more)."""

    def __init__(self) -> None:
        self._hears: dict[str, Hears] = {}

    def on(self, kind: str, hears: Hears) -> None:
        """Have messages of a kind taken by `hears`: in the link's reading thread, so it must be quick."""
        self._hears[kind] = hears

    def hear(self, worker: str, message: Message) -> None:
        """Take a neighbour's message."""
        hears = self._hears.get(message.kind)
        if hears is not None:
            hears(worker, message)
