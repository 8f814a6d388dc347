"""The paper's own runs, as its tables 6 and 8 have them, give what its tables 5 and 7 and section 7.1 say."""

import pytest

from kintsugi.matrix.cell import Suite, Variant
from kintsugi.matrix.comparisons import gain, over_suites, reduction
from kintsugi.matrix.findings import findings
from kintsugi.matrix.outcome_tables import aggregate, full, ranking, slices
from kintsugi.matrix.record import WallTime
from tests.matrix import records

NUM_STEPS = 1600
SUITES = {
    ("CIFAR-10", "ResNet-18", "base"): (11.7289, 11.3023, 11.5721, 11.0699, 6.1273),
    ("CIFAR-10", "ResNet-18", "late"): (13.3230, 11.2143, 11.2408, 10.8221, 5.8818),
    ("CIFAR-10", "ResNet-50", "base"): (8.5743, 6.7222, 6.8576, 24.2825, 9.7517),
    ("CIFAR-10", "ResNet-50", "late"): (7.2259, 6.6058, 6.8030, 24.7192, 10.1076),
    ("CIFAR-100", "ResNet-18", "base"): (14.9770, 12.5790, 12.7443, 11.1750, 5.1956),
    ("CIFAR-100", "ResNet-18", "late"): (14.5657, 12.2979, 12.7471, 11.7959, 5.1019),
    ("CIFAR-100", "ResNet-50", "base"): (8.6444, 7.6277, 7.8637, 24.2103, 10.2728),
    ("CIFAR-100", "ResNet-50", "late"): (8.3879, 7.2988, 7.3179, 26.6126, 10.4842),
}
"""Goodput of reference, blocking and overlapped (steps/s), stall of blocking and overlapped (s): table 8."""


def record(suite, variant, goodput, stall):
    total = NUM_STEPS / goodput
    wall = WallTime(
        total_seconds=total,
        compute_seconds=total - stall,
        snapshot_seconds=0.0,
        write_seconds=stall,
        sync_seconds=0.0,
        restart_seconds=0.0,
        repeated_seconds=0.0,
    )
    changes = {"num_steps": NUM_STEPS, "committed_steps": NUM_STEPS, "trained_samples": NUM_STEPS * records.BATCH_SIZE}
    return records.record(records.cell(variant, suite=suite), wall=wall, **changes)


@pytest.fixture(scope="module")
def results():
    found = []
    for (data_set, model, schedule), (reference, blocking, overlapped, blocked, waited) in SUITES.items():
        suite = Suite(data_set=data_set, model=model, schedule=schedule)
        found.append(record(suite, Variant.REFERENCE, reference, blocked))
        found.append(record(suite, Variant.BLOCKING, blocking, blocked))
        found.append(record(suite, Variant.OVERLAPPED, overlapped, waited))
    return records.results(found)


def rows(table):
    return [dict(zip([column.key for column in table.columns], row, strict=True)) for row in table.rows]


def test_the_mean_gain_is_the_published_one(results):
    interval = over_suites(results, Variant.OVERLAPPED, Variant.BLOCKING, gain)
    assert interval.mean == pytest.approx(0.019931, abs=2e-6)
    assert interval.margin is None, "the paper has one seed, so there is no interval"


def test_the_stall_saved_is_the_published_one(results):
    saved = reduction(results.pairs(Variant.OVERLAPPED, Variant.BLOCKING), "stall_seconds")
    assert saved.mean == pytest.approx(0.565110, abs=2e-6)


def test_table_5(results):
    reference, blocking, overlapped, apart = rows(aggregate(results))
    assert [row["goodput"].mean for row in (reference, blocking, overlapped)] == pytest.approx([10.9284, 9.4560, 9.6433], abs=1e-4)
    assert [row["change"].mean for row in (blocking, overlapped)] == pytest.approx([-0.132466, -0.115026], abs=2e-6)
    assert [row["wall_seconds"].mean for row in (reference, blocking, overlapped)] == pytest.approx(
        [157.1323, 181.3431, 177.7858], abs=0.03
    )
    assert apart["change"].mean == pytest.approx(0.019931, abs=2e-6)
    assert apart["stall_seconds"].mean == pytest.approx(-10.2205, abs=1e-4)
    assert "memory" not in {row["variant"] for row in (reference, blocking, overlapped, apart)}


def test_table_6_ranks_as_the_paper_does(results):
    found = rows(ranking(results))
    assert (found[0]["data_set"], found[0]["model"], found[0]["schedule"]) == ("CIFAR-100", "ResNet-18", "late")
    published = [0.036527, 0.030946, 0.029853, 0.023869, 0.020142, 0.013142, 0.002609, 0.002358]
    assert [row["overlapped_gain"].mean for row in found] == pytest.approx(published, abs=1e-5)
    assert [row["stall_change_seconds"].mean for row in found[:2]] == pytest.approx([-6.6940, -13.9375], abs=1e-4)


def test_table_7(results):
    found = {row["group"]: (row["overlapped_gain"].mean, row["stall_change_seconds"].mean) for row in rows(slices(results))}
    published = {
        "CIFAR-10": (0.019055, -9.7563),
        "CIFAR-100": (0.020806, -10.6848),
        "ResNet-18": (0.018974, -5.6390),
        "ResNet-50": (0.020888, -14.8021),
        "base": (0.022025, -9.8476),
        "late": (0.017837, -10.5935),
    }
    assert found.keys() == published.keys()
    for group, (gained, stall) in published.items():
        assert found[group][0] == pytest.approx(gained, abs=1e-5)
        assert found[group][1] == pytest.approx(stall, abs=1e-4)


def test_table_8(results):
    first = rows(full(results))[0]
    assert first["wall_change_seconds"].mean == pytest.approx(-3.3002, abs=0.02)
    assert first["overlapped_stall_seconds"].mean == 6.1273


def test_what_the_paper_reached_is_reached_and_one_seed_leaves_doubt(results):
    found = {finding.name: finding for finding in findings(results)}
    every = found["suites in which overlapped has more goodput than blocking"]
    assert (every.measured, every.is_reached, every.is_certain) == ("8 of 8, 0 of them beyond doubt", True, False)
    stall = found["stall saved, overlapped against blocking"]
    assert (stall.is_reached, stall.verdict) == (True, "reached, within what runs differ by")
    memory = found["goodput lost against the reference: in memory against overlapped"]
    assert (memory.is_reached, memory.verdict) == (None, "not measured")
