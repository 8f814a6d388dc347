"""How much this machine moves over the links of one joiner when nothing shapes them: what is measured must stay well below."""

from dataclasses import replace

from benchmarks.churn import nodes as on_node
from benchmarks.churn.baselines import Method, sends
from benchmarks.churn.measure import state_file
from benchmarks.churn.nodes import Duty, Nodes, Training
from benchmarks.churn.overlays import drawn
from benchmarks.churn.testbed import Testbed

_UNSHAPED_BITS_PER_SECOND = 40e9
_STATE_BYTES = 512 * 2**20
_NUM_LINKS = 4
_BOUNDARY = 100
"""A second from the start: all sources are told by then."""


def capacity_bits_per_second() -> float:
    """Payload that reaches a joiner from four neighbours at once over links of 40 Gbit/s and the usual latency."""
    plain = drawn(_NUM_LINKS, 0, num_neighbors=_NUM_LINKS)
    wires = tuple(replace(wire, bits_per_second=_UNSHAPED_BITS_PER_SECOND) for wire in plain.wires)
    overlay = replace(plain, wires=wires)
    with state_file(_STATE_BYTES) as path, Testbed(overlay.names, overlay.wires) as testbed, Nodes(testbed, overlay.names) as nodes:
        nodes.call(on_node.hold, path, on=overlay.active)
        nodes.call(on_node.make_room, _STATE_BYTES, on=[overlay.joiner])
        plan = sends(Method.EVEN, overlay, _STATE_BYTES, _STATE_BYTES // _NUM_LINKS)
        for source in overlay.active:
            own = tuple(send for send in plan if send.way[0] == source)
            nodes.call(on_node.train, Training(compute_seconds=0.01, gradient_bytes=4, parents={}), on=[source])
            nodes.call(on_node.undertake, Duty(boundary=_BOUNDARY, sends=own), on=[source])
        filled: float = nodes.call(on_node.fill, _STATE_BYTES, on=[overlay.joiner])[overlay.joiner]
        began: float = min(nodes.call(on_node.began_at, on=overlay.active).values())
    return 8 * _STATE_BYTES / (filled - began)
