"""How far workers are from the state that they lack: what decides between matchings that move equally many bytes."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from estimator.arrays import Floats, Ints, Mask
from kintsugi.core.cluster import Cluster
from kintsugi.core.profile import Network

SAME_HOST, SAME_DOMAIN, ELSEWHERE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Nearness:
    """Times and distances from places to the nearest holders of layers."""

    seconds: Floats
    """Of each layer from the holder with the fastest link. Shape [places, layers]."""
    distances: Ints
    """0 where a layer has a holder on the same host, 1 in one of its failure domains, 2 elsewhere. Shape [places, layers]."""
    place_of: npt.NDArray[np.intp]
    """The place of each worker; places that are equally near to everything are one. Shape [workers]."""


@dataclass(frozen=True, slots=True)
class Proximity:
    """Where workers live and how fast their links are."""

    cluster: Cluster
    network: Network

    def nearness(self, names: Sequence[str], kind_of: npt.NDArray[np.intp], held: Mask, layer_bytes: Sequence[int]) -> Nearness:
        """How near every worker is to every layer that others hold.

        Args:
            names: of all workers that hold anything or may be given something.
            kind_of: what each of them holds, shape [workers].
            held: whether kind i holds layer j, shape [kinds, layers].
            layer_bytes: state of each layer on one device, shape [layers].
        """
        sizes = np.asarray(layer_bytes, dtype=np.float64)
        workers = [self.cluster.by_id[name] for name in names]
        if self.cluster.is_uniform and not any(worker.failure_domains for worker in workers):
            seconds = self.cluster.link(names[0], names[-1], self.network).beta_seconds_per_byte * sizes[None, :]
            return Nearness(seconds, np.full(seconds.shape, ELSEWHERE), np.zeros(len(names), dtype=np.intp))
        places: dict[tuple[str, tuple[str, ...]], int] = {}
        of_worker = np.array([places.setdefault((worker.host, worker.failure_domains), len(places)) for worker in workers])
        present = np.zeros((len(places), len(held)), dtype=np.float32)
        present[of_worker, kind_of] = 1
        on_host = _anywhere([(host,) for host, _ in places], present, held)
        in_domain = _anywhere([domains for _, domains in places], present, held)
        distances = np.where(on_host, SAME_HOST, np.where(in_domain, SAME_DOMAIN, ELSEWHERE))
        return _merged(self._betas([host for host, _ in places], on_host) * sizes, distances, of_worker)

    def _betas(self, hosts: Sequence[str], on_host: Mask) -> Floats:
        """Seconds per byte of each layer over the fastest link to each place. Shape [places, layers]."""
        within, between = self.network.intra_host.beta_seconds_per_byte, self.network.inter_host.beta_seconds_per_byte
        result = np.where(on_host, min(within, between), between)
        places_on: dict[str, list[int]] = defaultdict(list)
        for place, host in enumerate(hosts):
            places_on[host].append(place)
        betas_from: dict[str, Floats] = {}
        for link in self.cluster.links:
            for host, source in (link.between, link.between[::-1]):
                if host not in betas_from:
                    betas_from[host] = np.full(len(hosts), between)
                    betas_from[host][places_on[host]] = within
                betas_from[host][places_on[source]] = link.beta_seconds_per_byte
        for host, betas in betas_from.items():
            result[places_on[host]] = np.where(on_host, betas[:, None], np.inf).min(axis=0, initial=np.inf)
        result[~np.isfinite(result)] = between
        return result


def _anywhere(groups_of: Sequence[Sequence[str]], present: npt.NDArray[np.float32], held: Mask) -> Mask:
    """Whether somebody in one of a place's groups (its host, or its domains) holds a layer. Shape [places, layers].

    Args:
        groups_of: of each place.
        present: 1 where place i has a worker of kind j.
        held: whether kind i holds layer j.
    """
    column: dict[str, int] = {}
    pairs = [(place, column.setdefault(name, len(column))) for place, groups in enumerate(groups_of) for name in groups]
    places, groups = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
    in_group = np.zeros((len(column), present.shape[1]), dtype=np.float32)
    np.maximum.at(in_group, groups, present[places])
    layers_in_group = (in_group @ held.astype(np.float32)) > 0
    result = np.zeros((len(groups_of), held.shape[1]), dtype=bool)
    np.logical_or.at(result, places, layers_in_group[groups])
    return result


def _merged(seconds: Floats, distances: Ints, of_worker: npt.NDArray[np.intp]) -> Nearness:
    """Places with the same times and distances as one."""
    numbers: dict[bytes, int] = {}
    rows = np.hstack([seconds, distances])
    merged = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in rows])
    first = np.unique(merged, return_index=True)[1]
    return Nearness(seconds[first], distances[first], merged[of_worker])
