"""What must move before a plan can run, and who sends it.

Bytes of a transfer count all devices of a worker; its time is that of one device, for they send side by side.
"""

import heapq
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kintsugi.core.cluster import Cluster
from kintsugi.core.decision import Migration, StateKind, Transfer
from kintsugi.core.errors import StateLostError
from kintsugi.core.plan import Plan
from kintsugi.core.profile import OptimizerSharding, Profile


def layer_state_bytes(profile: Profile) -> tuple[int, ...]:
    """Parameters and optimizer state of each layer on one device, in bytes. Shape [layers]."""
    return tuple(layer.parameter_bytes + layer.optimizer_bytes for layer in profile.layers)


def surviving_holders(previous: Plan, survivors: Collection[str]) -> tuple[tuple[str, ...], ...]:
    """Survivors that hold each layer's state, in slot order. Shape [layers][replicas]."""
    living = frozenset(survivors)
    return tuple(tuple(worker for worker in workers if worker in living) for workers in previous.holders)


def require_state(previous: Plan, survivors: Collection[str]) -> None:
    """Require a surviving holder of every layer.

    Raises:
        StateLostError: some layer has none.
    """
    living = frozenset(survivors)
    lost = tuple(layer for layer, holders in enumerate(previous.holders) if living.isdisjoint(holders))
    if lost:
        raise StateLostError(f"no survivor holds layers {list(lost)}; the job can only restart from a checkpoint", layers=lost)


@dataclass(frozen=True, slots=True)
class _Need:
    target: str
    layer: int
    kind: StateKind
    device_bytes: int


def plan_migration(previous: Plan, following: Plan, profile: Profile, cluster: Cluster, survivors: Collection[str]) -> Migration:
    """Everything that must move from `previous` to `following`, each piece from a survivor that holds it.

    Longest piece first, each to the source that is through with it earliest: within a factor of two of the best
    spread (Graham's bound for list scheduling), exact where every layer has one holder.

    Args:
        previous: the plan whose slots say who holds what.
        following: the plan to move to.
        profile: of the job.
        cluster: links.
        survivors: workers that are alive with their state.

    Raises:
        StateLostError: a layer that must move has no surviving holder.
    """
    needs = _needs(previous, following, profile, survivors)
    if not needs:
        return Migration()
    holders = surviving_holders(previous, survivors)
    lost = tuple(sorted({need.layer for need in needs if not holders[need.layer]}))
    if lost:
        raise StateLostError(f"no survivor holds layers {list(lost)}", layers=lost)
    ledger = _Ledger(profile, cluster)
    needs.sort(key=lambda need: (-need.device_bytes, need.layer, need.kind.value, cluster.order[need.target]))
    transfers = [ledger.book(need, holders[need.layer]) for need in needs]
    transfers.sort(key=lambda t: (t.layer, cluster.order[t.target], t.kind.value))
    return Migration(
        total_bytes=sum(transfer.num_bytes for transfer in transfers),
        makespan_seconds=ledger.makespan_seconds,
        lower_bound_seconds=ledger.lower_bound_seconds,
        transfers=tuple(transfers),
    )


def _needs(previous: Plan, following: Plan, profile: Profile, survivors: Collection[str]) -> list[_Need]:
    index_of = {layer.name: index for index, layer in enumerate(profile.layers)}
    result = []
    for worker, layers in following.layers_of.items():
        held = frozenset(previous.layers_of.get(worker, ())) if worker in survivors else frozenset()
        for index in layers:
            if index in held:
                continue
            layer = profile.layers[index]
            owner = profile.layers[index_of[layer.tied_to]] if layer.tied_to and index_of[layer.tied_to] not in layers else None
            parameters = layer.parameter_bytes + (owner.parameter_bytes if owner and not layer.parameter_bytes else 0)
            optimizer = layer.optimizer_bytes + (owner.optimizer_bytes if owner and not layer.optimizer_bytes else 0)
            if profile.optimizer_sharding is OptimizerSharding.ZERO1:
                optimizer = -(-optimizer // following.num_holders[index])
            result.append(_Need(worker, index, StateKind.PARAMETER, parameters))
            result.append(_Need(worker, index, StateKind.OPTIMIZER, optimizer))
    return [need for need in result if need.device_bytes]


class _Ledger:
    """Books transfers on their sources; every worker sends and receives at the same time, one message each way.

    Messages may be cut, so the busiest sender, receiver or host decides (preemptive open shop, Gonzalez and Sahni, 1976).
    """

    def __init__(self, profile: Profile, cluster: Cluster) -> None:
        self._network = profile.network
        self._degree = profile.tensor_parallel_degree
        self._cluster = cluster
        self._sending: dict[str, float] = defaultdict(float)
        self._receiving: dict[str, float] = defaultdict(float)
        self._least_receiving: dict[str, float] = defaultdict(float)
        self._only_sending: dict[str, float] = defaultdict(float)
        self._queues: dict[int, list[tuple[float, int, str]]] = {}
        """Sources of each layer by what they send, as far as it was known when they were last looked at."""
        self._host_out: dict[str, float] = defaultdict(float)
        self._host_in: dict[str, float] = defaultdict(float)

    def book(self, need: _Need, sources: tuple[str, ...]) -> Transfer:
        """Choose the source of `need` and enter it."""
        source, least_seconds = self._choose(need, sources)
        seconds = self._seconds(source, need)
        num_bytes = need.device_bytes * self._degree
        self._sending[source] += seconds
        self._receiving[need.target] += seconds
        self._least_receiving[need.target] += least_seconds
        if len(sources) == 1:
            self._only_sending[source] += seconds
        from_host, to_host = self._cluster.by_id[source].host, self._cluster.by_id[need.target].host
        if from_host != to_host:
            self._host_out[from_host] += num_bytes
            self._host_in[to_host] += num_bytes
        return Transfer(source=source, target=need.target, layer=need.layer, kind=need.kind, num_bytes=num_bytes)

    def _choose(self, need: _Need, sources: tuple[str, ...]) -> tuple[str, float]:
        """The source that is through with `need` earliest, and the time over the fastest link."""
        if self._cluster.is_uniform:
            source = self._least_loaded(need.layer, sources)
            return source, self._seconds(source, need)
        times = {source: self._seconds(source, need) for source in sources}
        source = min(sources, key=lambda source: (self._sending[source] + times[source], self._cluster.order[source]))
        return source, min(times.values())

    def _least_loaded(self, layer: int, sources: tuple[str, ...]) -> str:
        """The source that sends least so far: where all links are alike it is through first. O(log sources) amortised."""
        if layer not in self._queues:
            self._queues[layer] = [(self._sending[source], self._cluster.order[source], source) for source in sources]
            heapq.heapify(self._queues[layer])
        queue = self._queues[layer]
        while queue[0][0] < self._sending[queue[0][2]]:
            _, order, source = queue[0]
            heapq.heapreplace(queue, (self._sending[source], order, source))
        return queue[0][2]

    def _seconds(self, source: str, need: _Need) -> float:
        return self._cluster.link(source, need.target, self._network).transfer_seconds(need.device_bytes)

    @property
    def makespan_seconds(self) -> float:
        """Until the last message has arrived."""
        return max(
            *self._sending.values(),
            *self._receiving.values(),
            *_host_seconds(self._host_out, self._network.host_egress_bytes_per_second),
            *_host_seconds(self._host_in, self._network.host_ingress_bytes_per_second),
        )

    @property
    def lower_bound_seconds(self) -> float:
        """No choice of sources is faster: targets receive what they lack over their fastest links, only holders send theirs."""
        return max(*self._least_receiving.values(), *self._only_sending.values(), 0.0)


def _host_seconds(num_bytes: Mapping[str, float], bytes_per_second: float | None) -> tuple[float, ...]:
    return () if bytes_per_second is None else tuple(count / bytes_per_second for count in num_bytes.values())
