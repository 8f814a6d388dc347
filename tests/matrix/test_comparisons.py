"""Comparisons of synthetic runs whose answers are known by hand, and gates that one fault each trips."""

from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kintsugi.matrix import comparisons, sweep
from kintsugi.matrix.cell import Part, Variant
from kintsugi.matrix.cost_tables import PARTS, decomposition, divergences, failures
from kintsugi.matrix.divergence import Band, band, divergence
from kintsugi.matrix.findings import findings
from kintsugi.matrix.gates import CHECKS, acceptances
from kintsugi.matrix.results import Results
from kintsugi.runtime.supervising.supervision import EndReason
from tests.matrix import records
from tests.matrix.records import SUITES, WALLS, cell
from tests.matrix.test_published import rows

WHOLE = records.results(records.whole_matrix())


def without(results, *cells):
    return Results(results.manifest, {c: r for c, r in results.records.items() if c not in cells}, results.steps)


def changed(variant, **changes):
    """The whole matrix, the variant's cell of the first suite and seed being other than planned."""
    of = cell(variant)
    known = dict(WHOLE.records)
    known[of] = replace(known[of], **changes)
    return Results(WHOLE.manifest, known, WHOLE.steps)


def test_gains_and_losses_are_those_of_the_goodput():
    gained = comparisons.over_suites(WHOLE, Variant.OVERLAPPED, Variant.BLOCKING, comparisons.gain)
    assert gained.mean == pytest.approx(125 / 120 - 1)
    assert gained.margin == pytest.approx(0.0, abs=1e-9)
    trained = comparisons.over_suites(WHOLE, Variant.OVERLAPPED, Variant.BLOCKING, comparisons.gain_in_training)
    assert trained.mean == pytest.approx(115 / 110 - 1)
    lost = comparisons.over_suites(WHOLE, Variant.MEMORY, Variant.REFERENCE, comparisons.loss)
    assert lost.mean == pytest.approx(1 - 100 / 102)


def test_reductions_are_shares_of_blockings_time():
    pairs = WHOLE.pairs(Variant.OVERLAPPED, Variant.BLOCKING)
    assert comparisons.reduction(pairs, "stall_seconds").mean == pytest.approx(0.7)
    assert comparisons.reduction(pairs, "write_seconds").mean == pytest.approx(1 - 0.5 / 8)
    assert comparisons.reduction(pairs, "total_seconds").mean == pytest.approx(1 - 120 / 125)
    assert comparisons.reduction({}, "stall_seconds") is None
    assert comparisons.reduction(WHOLE.pairs(Variant.OVERLAPPED, Variant.REFERENCE), "restart_seconds") is None


def test_in_memory_loses_as_many_times_less_as_by_hand():
    assert comparisons.times_smaller(WHOLE, Variant.BLOCKING, comparisons.loss) == pytest.approx((1 - 0.8) / (1 - 100 / 102))
    assert comparisons.times_smaller(WHOLE, Variant.BLOCKING, comparisons.recovery) == pytest.approx((25 / 125) / (3 / 102))
    beyond = comparisons.margin_over(WHOLE, Variant.BLOCKING, 5.0, comparisons.loss)
    assert beyond.mean == pytest.approx(0.2 - 5 * (1 - 100 / 102))


def test_where_nothing_is_lost_in_memory_there_is_no_ratio_but_a_verdict():
    known = {
        c: records.record(c, wall=WALLS[Variant.REFERENCE]) if c.variant is Variant.MEMORY else r for c, r in WHOLE.records.items()
    }
    results = Results(WHOLE.manifest, known, WHOLE.steps)
    assert comparisons.times_smaller(results, Variant.BLOCKING, comparisons.loss) is None
    assert comparisons.margin_over(results, Variant.BLOCKING, 5.0, comparisons.loss).mean > 0


def test_seeds_that_only_one_variant_has_are_left_out_of_its_pairs():
    results = without(WHOLE, cell(Variant.BLOCKING, seed=1))
    (first, *others) = results.pairs(Variant.OVERLAPPED, Variant.BLOCKING).values()
    assert [mine.cell.seed for mine, _ in first] == [0, 2]
    assert all(len(pairs) == 3 for pairs in others)


@settings(deadline=None, max_examples=20)
@given(st.permutations(range(4)))
def test_the_order_of_cells_changes_no_comparison(order):
    known = list(records.whole_matrix(seeds=(0, 1)))[:16]
    shuffled = [known[4 * index + place] for index in order for place in range(4)]
    first, second = (
        comparisons.over_suites(records.results(each), Variant.MEMORY, Variant.BLOCKING, comparisons.gain)
        for each in (known, shuffled)
    )
    assert first.mean == pytest.approx(second.mean)


def test_divergence_is_the_mean_distance_of_the_losses():
    apart = divergence(WHOLE, cell(Variant.BLOCKING, seed=2))
    assert apart.mean_loss == pytest.approx(0.003)
    assert list(apart.parameters.values()) == pytest.approx([0.0003] * records.NUM_STEPS)
    assert divergence(WHOLE, cell(Variant.REFERENCE)).mean_loss == 0.0
    assert divergence(without(WHOLE, cell(Variant.REFERENCE)), cell(Variant.BLOCKING)).mean_loss == pytest.approx(0.001), (
        "the reference of the other schedule is the same run"
    )
    assert divergence(records.results([records.record(cell(Variant.BLOCKING))]), cell(Variant.BLOCKING)) is None


def test_bands_hold_the_steps_that_all_series_have():
    assert band([{0: 1.0, 1: 2.0, 2: 9.0}, {1: 4.0, 2: 3.0, 3: 1.0}]) == (Band(1, 2.0, 3.0, 4.0), Band(2, 3.0, 6.0, 9.0))
    assert band([]) == ()


def test_the_parts_of_every_row_are_its_wall_time():
    for row in rows(decomposition(WHOLE)):
        assert sum(row[f"{part}_seconds"] for part in PARTS) == pytest.approx(row["total_seconds"].mean)
    first = rows(decomposition(WHOLE))[1]
    assert (first["variant"], first["restart_seconds"]) == ("blocking", pytest.approx(15 * 1.01))


def test_what_failures_cost_is_told_apart_from_what_checkpoints_cost():
    found = {row["variant"]: row for row in rows(failures(WHOLE)) if row["data_set"] == "all"}
    assert found["blocking"]["recovery_ratio"].mean == pytest.approx(25 / 125)
    assert found["memory"]["recovery_ratio"].mean == pytest.approx(3 / 102)
    assert found["memory"]["seconds_per_failure"].mean == pytest.approx(1.5 * 1.01)
    assert found["overlapped"]["repeated_samples_ratio"].mean == pytest.approx(0.1)


def test_distances_are_told_per_suite_and_variant():
    found = rows(divergences(WHOLE))
    assert len(found) == len(SUITES) * len(Variant)
    assert found[1]["mean_loss_difference"] == pytest.approx(0.002)
    assert found[1]["largest_loss_difference"] == pytest.approx(0.003)


def test_a_report_tells_which_share_of_the_parameters_was_compared():
    known = [records.record(cell(variant), trace_every=5) for variant in Variant]
    results = records.results(known)
    blocking = cell(Variant.BLOCKING)
    results.steps[blocking] = tuple(
        replace(step, parameter_distance=0.1 if step.global_step in (4, 9, 14) else None) for step in results.steps[blocking]
    )
    found = {row["variant"]: row["parameters_compared_ratio"] for row in rows(divergences(results))}
    assert found["reference"] is None
    assert found["blocking"] == pytest.approx(3 / 20)
    assert {row["parameters_compared_ratio"] for row in rows(divergences(WHOLE))} == {None}  # records that do not say how many


def swept(variant, every, flight, seed, scale):
    of = cell(variant, part=Part.SWEEP, every_steps=every, max_in_flight=flight, seed=seed)
    return records.record(of, scale=scale)


def test_the_sweep_compares_equal_intervals_and_seeds():
    known = [*records.whole_matrix(seeds=(0, 1))[:8]]
    known += [swept(Variant.BLOCKING, 5, 1, seed, 2.0) for seed in (0, 1)]
    known += [swept(Variant.OVERLAPPED, 5, flight, seed, 1.0 + seed) for seed in (0, 1) for flight in (1, 2)]
    results = records.results(known)
    gains = sweep.gains(results, SUITES[0])
    at_one = fmean(250 / (120 * (1 + seed)) - 1 for seed in (0, 1))
    assert gains == {(5, 1): pytest.approx(at_one), (5, 2): pytest.approx(at_one), (10, 2): pytest.approx(125 / 120 - 1)}
    assert sweep.stall_shares(results, SUITES[0])[5, 1] == pytest.approx(3 / 120)
    assert sweep.suites_of(results) == (SUITES[0],)


def faults(results):
    return {gate.name: gate.faults for gate in acceptances(results)[0].gates}


def test_a_matrix_that_went_as_planned_is_accepted():
    found = acceptances(WHOLE)
    assert [each.subject for each in found] == [suite.name for suite in SUITES]
    assert all(each.is_accepted and each.num_cells == 12 for each in found)


RECORD = records.record(cell(Variant.BLOCKING))


@pytest.mark.parametrize(
    ("gate", "changes", "words"),
    [
        ("steps complete", {"committed_steps": 99}, "99 of 100"),
        ("audit", {"audit": replace(RECORD.audit, duplicates=1)}, "1 duplicates"),
        ("audit", {"audit": replace(RECORD.audit, problems=("a journal is torn",))}, "torn"),
        ("consistent", {"planned_failures": 3}, "2 of 3 failures struck"),
        ("consistent", {"attempts": records.attempts(2)}, "1 restarts where 2"),
        ("consistent", {"attempts": (*records.attempts(2), replace(records.attempts(1)[0], reason=EndReason.EXITED))}, "exited"),
        ("consistent", {"checkpoints": replace(RECORD.checkpoints, num_written=0)}, "wrote 0 checkpoints"),
        ("consistent", {"checkpoints": replace(RECORD.checkpoints, strategy="overlapped")}, "strategy overlapped"),
        ("consistent", {"wall": replace(RECORD.wall, compute_seconds=200.0)}, "longer than all"),
    ],
)
def test_one_fault_trips_its_gate(gate, changes, words):
    results = changed(Variant.BLOCKING, **changes)
    assert len(faults(results)[gate]) == 1
    assert words in faults(results)[gate][0]
    assert [each.is_accepted for each in acceptances(results)] == [False] + [True] * 7


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda steps: steps[:50] + steps[51:], "once each"),
        (lambda steps: [*steps[:-1], replace(steps[-1], ranks=3)], "1 steps with another number of ranks"),
        (lambda steps: [replace(steps[0], sample_ids_count=7), *steps[1:]], "1 steps with another number of samples"),
    ],
)
def test_steps_that_do_not_fit_trip_the_gate_of_artifacts(damage, words):
    of = cell(Variant.OVERLAPPED)
    results = Results(WHOLE.manifest, WHOLE.records, {**WHOLE.steps, of: tuple(damage(list(WHOLE.steps[of])))})
    assert words in faults(results)["artifacts"][0]


def test_a_cell_without_a_record_is_not_overlooked():
    results = without(WHOLE, cell(Variant.MEMORY, seed=2))
    assert "memory-seed2: has no record" in faults(results)["artifacts"][0]
    assert next(iter(findings(results))).is_reached is False


@pytest.mark.parametrize("kept", [(Variant.MEMORY,), (Variant.REFERENCE, Variant.BLOCKING), tuple(Variant)])
def test_a_suite_is_not_accepted_without_what_is_compared(kept):
    """Of seed 1 only some variants were asked for; of seed 0 all but memory, which the paper does not have."""
    compared = (Variant.REFERENCE, Variant.BLOCKING, Variant.OVERLAPPED)
    asked = [cell(variant) for variant in compared] + [cell(variant, seed=1) for variant in kept]
    results = records.results(map(records.record, asked))
    expected = [f"{cell(v, seed=1).name}: was not asked for" for v in compared if v not in kept]
    assert [fault.split(",")[0] for fault in faults(results)["steps complete"]] == expected
    assert acceptances(results)[0].is_accepted is not bool(expected)


def test_cells_beside_the_matrix_need_no_others():
    results = records.results([swept(Variant.OVERLAPPED, 5, 1, 0, 1.0)])
    assert acceptances(results)[0].is_accepted


def test_every_gate_is_in_every_acceptance():
    assert all([gate.name for gate in each.gates] == list(CHECKS) for each in acceptances(WHOLE))


def test_findings_of_the_matrix_by_hand():
    found = {finding.name: finding for finding in findings(WHOLE)}
    assert all(finding.is_reached for finding in found.values())
    assert found["audit pass rate"].measured == "96 of 96 cells"
    assert found["stall saved, overlapped against blocking"].measured == "+70.00% ± 0.00%"
    assert found["share of wall time that blocking stalls"].measured == "8.00% ± 0.00%"
    assert found["stall of a snapshot, in memory copies of as many bytes"].measured.startswith("1.00 ")


@pytest.mark.parametrize(
    ("parts", "missed"),
    [
        ({"write_seconds": 1.0}, "write time on the critical path saved"),
        ({"sync_seconds": 4.0}, "stall saved, overlapped against blocking"),
        ({"total_seconds": 130.0}, "suites in which overlapped has more goodput than blocking"),
    ],
)
def test_what_is_not_reached_is_said_to_be_missed(parts, missed):
    slow = replace(WALLS[Variant.OVERLAPPED], **parts)
    known = {c: records.record(c, wall=slow) if c.variant is Variant.OVERLAPPED else r for c, r in WHOLE.records.items()}
    found = {finding.name: finding for finding in findings(Results(WHOLE.manifest, known, WHOLE.steps))}
    assert found[missed].is_reached is False
    assert found[missed].verdict.startswith("missed")
