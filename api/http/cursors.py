"""Cursors of lists: opaque to clients, bound to one list, and stable while items are added, since they name the last item shown."""

import base64
import binascii
import json

from kintsugi.core.checks import LARGEST_INTEGER
from kintsugi.core.errors import InvalidInputError

Position = list[str | int]


class Cursors:
    """Makes and reads the cursors of one list."""

    def __init__(self, *name: str) -> None:
        self._name = list(name)

    def after(self, *position: str | int) -> str:
        """The cursor that goes on behind the item at `position`."""
        text = json.dumps([self._name, list(position)], separators=(",", ":"), ensure_ascii=False)
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    def number(self, cursor: str | None) -> int:
        """The number behind which a list of numbered items goes on; 0 at its beginning.

        Raises:
            InvalidInputError: the cursor is of another list.
        """
        match self._position(cursor):
            case None:
                return 0
            case [int(number)] if not isinstance(number, bool) and 0 <= number <= LARGEST_INTEGER:
                return number
        raise _foreign(cursor)

    def text(self, cursor: str | None) -> str:
        """The text behind which a sorted list goes on; empty at its beginning.

        Raises:
            InvalidInputError: the cursor is of another list.
        """
        match self._position(cursor):
            case None:
                return ""
            case [str(text)] if text.isprintable():
                return text
        raise _foreign(cursor)

    def pair(self, cursor: str | None) -> tuple[str, str]:
        """The two texts behind which a list that is sorted by both goes on; empty at its beginning.

        Raises:
            InvalidInputError: the cursor is of another list.
        """
        match self._position(cursor):
            case None:
                return "", ""
            case [str(first), str(second)] if (first + second).isprintable():
                return first, second
        raise _foreign(cursor)

    def _position(self, cursor: str | None) -> Position | None:
        if cursor is None:
            return None
        try:
            padded = cursor + "=" * (-len(cursor) % 4)
            match json.loads(base64.b64decode(padded, altchars=b"-_", validate=True)):
                case [list(name), list(position)] if name == self._name:
                    return position
        except (binascii.Error, ValueError, RecursionError):
            pass
        raise _foreign(cursor)


def _foreign(cursor: str | None) -> InvalidInputError:
    message = "is no cursor of this list; take next_cursor of its last page, or leave it out to begin anew"
    return InvalidInputError(message, field="cursor", value=(cursor or "")[:80])
