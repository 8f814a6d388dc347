"""Which bytes of the state each source sends."""

from kintsugi.core.overlay import Replication
from kintsugi.runtime.overlay.ranges import Ranges, united


def share_ranges(replication: Replication, num_bytes: int) -> dict[str, Ranges]:
    """Bytes by source. What was planned for `state_bytes` is scaled to what the state really has.

    A joining worker may not know how much an optimizer that has not stepped yet will keep.
    """
    found: dict[str, Ranges] = {}
    for share in replication.shares:
        found[share.source] = united(found.get(share.source, ()), (replication.byte_range(share, num_bytes),))
    return found
