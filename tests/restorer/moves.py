"""Random migrations, the linear program that bounds them, and how they are carried out event by event."""

import random
from dataclasses import replace

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from kintsugi.core.cluster import Cluster, HostLink, Worker, host_name, worker_name
from kintsugi.core.plan import Plan
from kintsugi.core.profile import Profile
from tests.builders import grid_plan, layer, profile_of


def random_case(seed: int) -> tuple[Plan, Plan, Profile, Cluster, set[str]]:
    """Two plans for up to 16 workers on hosts of one to eight, links and limits of their own, and the survivors."""
    draw = random.Random(seed)
    num_workers, per_host, num_layers = draw.randint(3, 16), draw.choice([1, 2, 4, 8]), draw.randint(2, 24)
    workers = tuple(Worker(id=worker_name(n), host=host_name(n // per_host)) for n in range(num_workers))
    cluster = Cluster(name="random", workers=workers, links=_links(draw, sorted({worker.host for worker in workers})))
    layers = [
        layer(f"b{n}", parameter_bytes=draw.randint(10**6, 10**9), optimizer_bytes=draw.randint(10**6, 4 * 10**9))
        for n in range(num_layers)
    ]
    profile = profile_of(layers, tensor_parallel_degree=draw.choice([1, 2]))
    if draw.random() < 0.4:
        rates = {f"host_{way}_bytes_per_second": draw.choice([None, 1e10, 5e10]) for way in ("egress", "ingress")}
        profile = replace(profile, network=replace(profile.network, **rates))
    names = [worker.id for worker in workers]
    draw.shuffle(names)
    before, after = (_plan(draw, num_layers, own) for own in (names, draw.sample(names, draw.randint(1, num_workers))))
    return before, after, profile, cluster, set(draw.sample(names, draw.randint(max(1, num_workers - 3), num_workers)))


def _links(draw: random.Random, hosts: list[str]) -> tuple[HostLink, ...]:
    if draw.random() < 0.5:
        return ()
    pairs = [(one, other) for one in hosts for other in hosts if one < other and draw.random() < 0.4]
    return tuple(
        HostLink(between=pair, alpha_seconds=draw.choice([0.0, 1e-4]), beta_seconds_per_byte=10 ** draw.uniform(-11, -9))
        for pair in pairs
    )


def _plan(draw: random.Random, num_layers: int, names: list[str]) -> Plan:
    lengths, left = [], len(names)
    while left:
        lengths.append(draw.randint(1, min(left, num_layers)))
        left -= lengths[-1]
    return renamed(grid_plan(num_layers, lengths, [1] * len(lengths)), names)


def renamed(plan: Plan, names: list[str]) -> Plan:
    """`plan` with other workers, slot by slot."""
    taken = iter(names)
    pipelines = tuple(
        replace(pipeline, stages=tuple(replace(stage, worker=next(taken)) for stage in pipeline.stages))
        for pipeline in plan.pipelines
    )
    return replace(plan, pipelines=pipelines)


def fastest_beta(target: str, is_outside: bool, profile: Profile, cluster: Cluster) -> float:
    """Seconds per byte of the fastest link to a worker from another host, or from its own; by definition."""
    own = cluster.by_id[target].host
    if not is_outside:
        return profile.network.intra_host.beta_seconds_per_byte
    if profile.network.host_ingress_bytes_per_second is not None:
        return 0.0
    return min(cluster.host_link(host, own, profile.network).beta_seconds_per_byte for host in cluster.hosts if host != own)


def best_seconds(needs, profile: Profile, cluster: Cluster) -> float:
    """The linear program over divisible needs, by HiGHS: no choice of sources is through earlier."""
    pairs = [(row, source) for row, need in enumerate(needs) for source in need.sources]
    network, hosts = profile.network, {host: index for index, host in enumerate(cluster.hosts)}
    machine = {worker: index for index, worker in enumerate(cluster.by_id)}
    size, entries = len(machine), []
    for column, (row, source) in enumerate(pairs):
        need, ends = needs[row], (cluster.by_id[source].host, cluster.by_id[needs[row].target].host)
        entries.append((machine[source], column, cluster.link(source, need.target, network).transfer_seconds(need.device_bytes)))
        is_outside = ends[0] != ends[1]
        intake = fastest_beta(need.target, is_outside, profile, cluster) * need.device_bytes
        entries.append((size + 2 * len(hosts) + 2 * machine[need.target] + is_outside, column, intake))
        rates = (network.host_egress_bytes_per_second, network.host_ingress_bytes_per_second)
        for offset, rate, host in zip((size, size + len(hosts)), rates, ends, strict=True):
            if rate is not None and is_outside:
                entries.append((offset + hosts[host], column, need.device_bytes * profile.tensor_parallel_degree / rate))
    rows, columns, values = zip(*entries, strict=True)
    shape = 3 * size + 2 * len(hosts), len(pairs)
    result = linprog(
        np.append(np.zeros(len(pairs)), 1.0),
        A_ub=sparse.hstack([sparse.csr_array((values, (rows, columns)), shape), -np.ones((shape[0], 1))]),
        b_ub=np.zeros(shape[0]),
        A_eq=sparse.csr_array((np.ones(len(pairs)), ([row for row, _ in pairs], range(len(pairs)))), (len(needs), len(pairs) + 1)),
        b_eq=np.ones(len(needs)),
        method="highs",
    )
    return float(result.fun)


def last_arrival(transfers, profile: Profile, cluster: Cluster) -> float:
    """Every source sends its transfers one after the other; receivers take in whatever comes."""
    clock = dict.fromkeys(cluster.by_id, 0.0)
    arrivals = []
    for transfer in transfers:
        link = cluster.link(transfer.source, transfer.target, profile.network)
        clock[transfer.source] += link.transfer_seconds(transfer.num_bytes / profile.tensor_parallel_degree)
        arrivals.append(clock[transfer.source])
    return max(arrivals, default=0.0)


def overloads(transfers, makespan: float, profile: Profile, cluster: Cluster) -> list[str]:
    """What is asked too much of when all transfers run side by side at constant rates from the beginning to the end."""
    busy, out, into, intake = {}, {}, {}, {}
    for transfer in transfers:
        hosts = cluster.by_id[transfer.source].host, cluster.by_id[transfer.target].host
        device_bytes = transfer.num_bytes / profile.tensor_parallel_degree
        seconds = cluster.host_link(*hosts, profile.network).transfer_seconds(device_bytes)
        busy[transfer.source] = busy.get(transfer.source, 0.0) + seconds / makespan
        key = transfer.target, hosts[0] != hosts[1]
        intake[key] = intake.get(key, 0.0) + device_bytes * fastest_beta(*key, profile, cluster) / makespan
        if hosts[0] != hosts[1]:
            out[hosts[0]] = out.get(hosts[0], 0.0) + transfer.num_bytes / makespan
            into[hosts[1]] = into.get(hosts[1], 0.0) + transfer.num_bytes / makespan
    limits = (
        (busy, 1.0),
        (intake, 1.0),
        (out, profile.network.host_egress_bytes_per_second),
        (into, profile.network.host_ingress_bytes_per_second),
    )
    return [key for loads, limit in limits if limit for key, load in loads.items() if load > limit * (1 + 1e-9)]
