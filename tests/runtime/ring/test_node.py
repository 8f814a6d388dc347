import pytest

from tests.runtime.ring.rings import Ring


@pytest.mark.parametrize(("size", "lost"), [(3, "b"), (5, "bd"), (5, "ab"), (7, "bcd"), (2, "a"), (4, "ab"), (4, "abc")])
def test_survivors_agree_on_who_is_left(size: int, lost: str) -> None:
    with Ring(size) as ring:
        ring.kill(*lost)
        left = [name for name in ring.names if name not in lost]
        ring.wait_for(left)
        assert len({ring.nodes[name].agreement for name in left}) == 1
