"""How many workers it takes: the one rule by which a generation is decided once.

A proposal that a majority of a generation's members accepted is decided. Where fewer are left, the service's lease decides
between those who ask, and only those may ask among whom every majority would have a member, or its members be dead.
"""

from collections.abc import Collection


def is_majority(num_accepted: int, num_members: int) -> bool:
    """Whether no other proposal can be accepted by as many."""
    return 2 * num_accepted > num_members


def may_propose(ring: Collection[str], dead: Collection[str], members: Collection[str]) -> bool:
    """Whether those in `ring` know of whatever may have been decided already, so that they may decide or ask the lease.

    Half of the members meet every majority. Fewer do not: a majority may live behind a broken link. Then all others
    must have ended for certain (`dead`); silence and broken connections are no proof.
    """
    return 2 * len(ring) >= len(members) or set(members) <= {*ring, *dead}
