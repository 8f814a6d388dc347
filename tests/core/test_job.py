"""Invariants of ranges, settings and snapshots."""

from dataclasses import replace

import pytest

from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.job import DEFAULT_MTBF_SECONDS, JobSettings, Ranges, Snapshot
from tests.builders import uniform_profile
from tests.core import samples
from tests.core.refusals import refuses


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"min_dp": 0}, "min_dp"),
        ({"min_pp": -2}, "min_pp"),
        ({"min_dp": 4, "max_dp": 3}, "max_dp"),
        ({"min_pp": 2, "max_pp": 1}, "max_pp"),
        ({"max_dp": 0}, "max_dp"),
    ],
)
def test_ranges_refuse(changes, field):
    with refuses(field):
        Ranges(**changes)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_microbatches": 0}, "num_microbatches"),
        ({"num_microbatches": 2**20 + 1}, "num_microbatches"),
        ({"mtbf_seconds": 0}, "mtbf_seconds"),
        ({"mtbf_seconds": -1}, "mtbf_seconds"),
        ({"mtbf_prior_failures": 0}, "mtbf_prior_failures"),
        ({"heartbeat_timeout_seconds": 0}, "heartbeat_timeout_seconds"),
    ],
)
def test_settings_refuse(changes, field):
    with refuses(field):
        JobSettings(**{"num_microbatches": 8, **changes})


def test_settings_that_were_stored_before_times_had_to_be_credible_are_read():
    stored = JobSettings(num_microbatches=8, mtbf_seconds=0.5, heartbeat_timeout_seconds=1e-9)
    assert codec.loads(JobSettings, codec.dumps(stored)) == stored


def test_mean_time_between_failures_is_three_hours_unless_told():
    assert JobSettings(num_microbatches=8).mtbf_seconds == DEFAULT_MTBF_SECONDS == 3 * 3600


def snapshot(**changes):
    cluster = Cluster.uniform(4)
    values = {
        "profile": uniform_profile(4),
        "cluster": cluster,
        "settings": JobSettings(num_microbatches=4),
        "plan": samples.rerouted(),
        "alive": ("w00", "w01", "w03"),
        "generation": 1,
    }
    return Snapshot(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "field", "value"),
    [
        ({"generation": -1}, "generation", -1),
        ({"alive": ("w00", "w00")}, "alive[1]", "w00"),
        ({"alive": ("w00", "w07")}, "alive[1]", "w07"),
        ({"stateless": ("w07",)}, "stateless[0]", "w07"),
        ({"draining": ("w02", "w07")}, "draining[1]", "w07"),
        ({"draining": ("w02", "w01")}, "draining", ["w01"]),
        ({"profile": uniform_profile(3)}, "plan", 4),
        ({"settings": JobSettings(num_microbatches=65_537)}, "settings.num_microbatches", 65_537),
    ],
)
def test_snapshot_refuses(changes, field, value):
    with refuses(field, value):
        snapshot(**changes)


def test_large_jobs_have_as_many_microbatches_for_each_worker():
    cluster, most = Cluster.uniform(2000), JobSettings(num_microbatches=128_000)
    changes = {"cluster": cluster, "plan": None, "alive": tuple(cluster.by_id)}
    assert snapshot(settings=most, **changes).settings.num_microbatches == 128_000
    with refuses("settings.num_microbatches", 128_001, "over 128000"):
        snapshot(settings=JobSettings(num_microbatches=128_001), **changes)


def test_equal_snapshots_have_equal_digests():
    one = snapshot()
    other = codec.loads(Snapshot, codec.dumps(one))
    assert one == other
    assert codec.digest(one) == codec.digest(other)
    assert codec.digest(one) != codec.digest(replace(one, generation=2))
