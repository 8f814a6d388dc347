"""Who computes: workers, the hosts they share, and the links between hosts."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from kintsugi.core import checks
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.profile import PYDANTIC_CONFIG, Device, LinkCost, Network

MOST_WORKERS = 131_072
"""Of a job that is planned for, as far as nobody says otherwise."""


def worker_name(index: int) -> str:
    """Id of worker number `index`: `w` and two or more digits."""
    return f"w{index:02d}"


def host_name(index: int) -> str:
    """Id of host number `index`: `h` and two or more digits."""
    return f"h{index:02d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """The smallest unit that can hold a stage: one tensor-parallel group of devices with a stable id."""

    __pydantic_config__ = PYDANTIC_CONFIG

    id: str
    host: str
    """Workers of one host share a machine and fail together."""
    speed_ratio: float = 1.0
    """Multiplies speed: 0.5 takes twice as long."""
    memory_bytes: int | None = None
    """Memory of each of the worker's devices; null means the profile's."""
    failure_domains: tuple[str, ...] = ()
    """Racks, switches and whatever else fails as one, innermost first."""

    def __post_init__(self) -> None:
        checks.name("id", self.id)
        checks.name("host", self.host)
        checks.speed_ratio("speed_ratio", self.speed_ratio)
        if self.memory_bytes is not None:
            checks.device_memory("memory_bytes", self.memory_bytes)
        for index, domain in enumerate(self.failure_domains):
            checks.name(f"failure_domains[{index}]", domain)
        checks.unique("failure_domains", self.failure_domains)

    def usable_bytes(self, device: Device) -> int:
        """Memory that stages may fill on each of its devices: its own where that is stated, less what `device` reserves."""
        return device.usable_bytes if self.memory_bytes is None else self.memory_bytes - device.reserved_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLink:
    """A link between two hosts that differs from the profile's."""

    __pydantic_config__ = PYDANTIC_CONFIG

    between: tuple[str, str]
    alpha_seconds: float
    beta_seconds_per_byte: float

    def __post_init__(self) -> None:
        self.cost  # noqa: B018  # states the cost's own invariants
        checks.unique("between", self.between)

    @property
    def cost(self) -> LinkCost:
        """The link's alpha-beta cost."""
        return LinkCost(alpha_seconds=self.alpha_seconds, beta_seconds_per_byte=self.beta_seconds_per_byte)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The workers a job may use (contract: schema_version 1)."""

    __pydantic_config__ = PYDANTIC_CONFIG

    schema_version: int = 1
    name: str
    workers: tuple[Worker, ...]
    links: tuple[HostLink, ...] = ()

    def __post_init__(self) -> None:
        if self.schema_version != 1:
            raise InvalidInputError("this version reads schema_version 1", field="schema_version", value=self.schema_version)
        checks.name("name", self.name)
        checks.not_empty("workers", self.workers)
        checks.unique("workers", [worker.id for worker in self.workers])
        checks.distinct([tuple(sorted(link.between)) for link in self.links], lambda index: f"links[{index}].between")
        hosts = set(self.hosts)
        for index, link in enumerate(self.links):
            for host in link.between:
                if host not in hosts:
                    raise InvalidInputError("is no host of any worker", field=f"links[{index}].between", value=host)

    @classmethod
    def uniform(cls, num_workers: int, *, workers_per_host: int = 1, name: str = "uniform") -> "Cluster":
        """`num_workers` equal workers named w00, w01, ...; worker n lives on host n // workers_per_host."""
        checks.count("num_workers", num_workers)
        checks.count("workers_per_host", workers_per_host)
        workers = tuple(Worker(id=worker_name(n), host=host_name(n // workers_per_host)) for n in range(num_workers))
        return cls(name=name, workers=workers)

    @cached_property
    def by_id(self) -> dict[str, Worker]:
        """Workers by id."""
        return {worker.id: worker for worker in self.workers}

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """Host ids in the order of their first worker."""
        return tuple(dict.fromkeys(worker.host for worker in self.workers))

    @cached_property
    def order(self) -> dict[str, int]:
        """Position of every worker in the cluster: the tie-break of all planning."""
        return {worker.id: index for index, worker in enumerate(self.workers)}

    @cached_property
    def links_of(self) -> dict[str, dict[str, LinkCost]]:
        """The cluster's own links of each host that has any, by the host at the other end."""
        result: dict[str, dict[str, LinkCost]] = {}
        for link in self.links:
            one, other = link.between
            cost = link.cost
            result.setdefault(one, {})[other] = cost
            result.setdefault(other, {})[one] = cost
        return result

    @cached_property
    def is_uniform(self) -> bool:
        """Whether all workers are equal in speed, memory and links."""
        first = self.workers[0]
        return self.has_equal_links and all(
            (w.speed_ratio, w.memory_bytes) == (first.speed_ratio, first.memory_bytes) for w in self.workers
        )

    @cached_property
    def has_equal_links(self) -> bool:
        """Whether all links between workers are equal: each is alone on its host, or all are on one."""
        return not self.links and len(self.hosts) in (1, len(self.workers))

    def by_host(self, workers: Iterable[str]) -> dict[str, list[str]]:
        """Some workers (ids) by their hosts, both in the order given."""
        result: dict[str, list[str]] = {}
        for worker in workers:
            result.setdefault(self.by_id[worker].host, []).append(worker)
        return result

    def workers_on(self, host: str) -> tuple[str, ...]:
        """Ids of the workers on `host`."""
        return tuple(worker.id for worker in self.workers if worker.host == host)

    def link(self, source: str, target: str, network: Network) -> LinkCost:
        """Cost of the link between two workers (ids), from the cluster's own links, else from the profile's network."""
        return self.host_link(self.by_id[source].host, self.by_id[target].host, network)

    def host_link(self, source_host: str, target_host: str, network: Network) -> LinkCost:
        """Cost of the link between workers of two hosts."""
        if source_host == target_host:
            return network.intra_host
        own = self.links_of.get(source_host)
        return network.inter_host if own is None else own.get(target_host, network.inter_host)

    def is_as_fast_as(self, other: "Cluster", workers: Iterable[str]) -> bool:
        """Whether the links and those of `workers` (ids) that both have are of the same speed."""
        if self is other:
            return True
        speeds = ((self.by_id[worker], other.by_id[worker]) for worker in workers if worker in other.by_id)
        return set(self.links) == set(other.links) and all(here.speed_ratio == there.speed_ratio for here, there in speeds)

    def with_workers(self, workers: tuple[Worker, ...]) -> "Cluster":
        """The same cluster with other workers; links of hosts that are gone are dropped."""
        hosts = {worker.host for worker in workers}
        links = tuple(link for link in self.links if set(link.between) <= hosts)
        return Cluster(name=self.name, workers=workers, links=links)
