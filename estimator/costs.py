"""What each action of a program takes, in seconds, from profile and cluster."""

import math
from collections.abc import Mapping
from functools import cached_property

from estimator.communication import ring_all_reduce_seconds, slowest_link
from estimator.host_links import MOST_HOSTS, HostLinks
from estimator.layers import LayerSums, StageTimes
from estimator.list_schedule import WorkerSchedule
from estimator.memory import Allowance
from estimator.seats import Alike
from kintsugi.core.cluster import Cluster
from kintsugi.core.plan import Reduction
from kintsugi.core.profile import LinkCost, Profile


class Costs:
    """Durations of actions. Layer ranges are half open; workers are ids; sums over a range take O(1)."""

    def __init__(self, profile: Profile, cluster: Cluster) -> None:
        self.profile = profile
        self.cluster = cluster
        self.sums = LayerSums(profile)
        self._stages: dict[tuple[int, int, float], StageTimes] = {}
        self._rings: dict[tuple[str, ...], LinkCost] = {}
        self.rerouted: dict[object, list[tuple[bool, Mapping[str, WorkerSchedule]]]] = {}
        """List schedules by what they order, and whether they fit memory: plans differ in their reductions alone at times."""
        self.allowances: dict[object, dict[object, Allowance]] = {}
        """Of workers of rerouted pipelines, by the holders of layers, and by their own layers."""
        self.alike: dict[object, dict[object, Alike]] = {}
        """Pipelines that no failure touched, by schedule and holders of layers, and by what sets them apart."""
        self.paths: dict[tuple[str, ...], tuple[str, ...]] = {}
        """Workers in the order in which first plans over links that differ take them, by the order in which they are listed."""
        self.sides: dict[tuple[str, ...], tuple[tuple[str, ...], ...]] = {}
        """The parts of these that slow links lie between, by the workers in that order."""
        self.spreads: dict[object, tuple[str, ...] | None] = {}
        """Workers of first plans whose replicas are on different hosts, by what is asked of whom; None where there are none."""

    def stage(self, worker: str, start: int, stop: int) -> StageTimes:
        """Passes of one micro-batch, and the update, through layers [start, stop) on one worker."""
        key = start, stop, self.cluster.by_id[worker].speed_ratio
        if key not in self._stages:
            self._stages[key] = self.sums.times(*key)
        return self._stages[key]

    def usable_bytes(self, worker: str) -> int:
        """Memory that a stage may fill on each of the worker's devices."""
        return self.cluster.by_id[worker].usable_bytes(self.profile.device)

    def boundary_seconds(self, source: str, target: str, boundary: int) -> float:
        """The activation (or its gradient) in front of layer `boundary`, from one worker to another."""
        if source == target:
            return 0.0
        return self.cluster.link(source, target, self.profile.network).transfer_seconds(
            self.profile.layers[boundary - 1].output_bytes
        )

    def reduction_seconds(self, reduction: Reduction) -> float:
        """Ring all-reduce of one bucket over its workers."""
        return self.ring_seconds(reduction.workers, reduction.num_bytes)

    def ring_seconds(self, workers: tuple[str, ...], num_bytes: int) -> float:
        """All-reduce of so many bytes over a ring of workers in this order."""
        if workers not in self._rings:
            self._rings[workers] = slowest_link(workers, self.cluster, self.profile.network)
        return ring_all_reduce_seconds(self._rings[workers], len(workers), num_bytes)

    @cached_property
    def host_links(self) -> HostLinks | None:
        """Of the cluster; None where none differs, or there are more than `estimator.host_links.MOST_HOSTS` hosts."""
        cluster = self.cluster
        return HostLinks(cluster, self.profile.network) if cluster.links and len(cluster.hosts) <= MOST_HOSTS else None

    @cached_property
    def is_uniform(self) -> bool:
        """Whether workers and links are all equal, so that nothing depends on who has which place."""
        return self.cluster.is_uniform

    def commit_seconds(self, num_workers: int) -> float:
        """All-reduce of the gradient norm: a latency-bound tree, up and down."""
        return 2 * math.ceil(math.log2(num_workers)) * self._longest_alpha_seconds if num_workers > 1 else 0.0

    @cached_property
    def _longest_alpha_seconds(self) -> float:
        network = self.profile.network
        between_hosts = network.inter_host if len(self.cluster.hosts) > 1 else network.intra_host
        return max([between_hosts.alpha_seconds, *(link.alpha_seconds for link in self.cluster.links)])
