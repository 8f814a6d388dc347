from dataclasses import replace

import pytest

from estimator.calibration import Calibration, MeasuredStep, calibrate
from estimator.estimate import estimate
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.job import JobSettings, Ranges, Snapshot
from kintsugi.core.plan import Plan, Policy
from kintsugi.core.profile import LinkCost
from planner.replan import replan
from tests.builders import uniform_profile

LINK = LinkCost(alpha_seconds=5e-5, beta_seconds_per_byte=2e-10)


def profile_of(output_bytes):
    plain = uniform_profile(8)
    layers = tuple(
        replace(
            layer,
            forward_seconds=0.012,
            backward_input_seconds=0.012,
            backward_weight_seconds=0.012,
            output_bytes=output_bytes,
            gradient_bytes=output_bytes,
        )
        for layer in plain.layers
    )
    return replace(plain, layers=layers, network=replace(plain.network, intra_host=LINK, inter_host=LINK))


SMALL, LARGE = profile_of(4_096), profile_of(4_000_000)
GRIDS = ((1, 1, 3), (1, 2, 6), (1, 3, 6), (4, 1, 8), (3, 2, 12))


def plan_of(profile, dp, pp, num_microbatches) -> tuple[Plan, Cluster]:
    cluster = Cluster.uniform(dp * pp)
    ranges = Ranges(min_dp=dp, max_dp=dp, min_pp=pp, max_pp=pp)
    job = JobSettings(num_microbatches=num_microbatches, ranges=ranges)
    asked = Snapshot(profile=profile, cluster=cluster, settings=job, plan=None, alive=tuple(cluster.by_id), generation=0)
    return replan(asked).plan, cluster


PLANS = [(profile, *plan_of(profile, *grid)) for profile in (SMALL, LARGE) for grid in GRIDS]


def measured(truth: Calibration) -> list[MeasuredStep]:
    """Steps of a machine that is as `truth` says, known from profiles that do not say it."""
    return [
        MeasuredStep(
            plan=plan,
            profile=profile,
            cluster=cluster,
            iteration_seconds=estimate(plan, truth.applied_to(profile), cluster).iteration_seconds,
        )
        for profile, plan, cluster in PLANS
    ]


@pytest.mark.parametrize(
    ("ratio", "alpha", "beta"), [(1.0, 0.0, 0.0), (0.8, 0.0, 2e-9), (1.02, 3e-4, 0.0), (1.25, 2e-3, 1e-10), (0.95, 1e-5, 5e-10)]
)
def test_finds_what_the_steps_were_made_with(ratio, alpha, beta):
    truth = Calibration(compute_ratio=ratio, alpha_seconds=alpha, beta_seconds_per_byte=beta)
    found = calibrate(measured(truth))
    assert found.compute_ratio == pytest.approx(ratio, rel=1e-3)
    assert found.alpha_seconds == pytest.approx(alpha, rel=1e-2, abs=2e-6)
    assert found.beta_seconds_per_byte == pytest.approx(beta, rel=1e-2, abs=2e-12)


def test_all_that_a_pass_takes_is_scaled_and_nothing_of_the_update():
    profile = uniform_profile(2, layer_changes={"accumulation_seconds": 0.004})
    scaled = Calibration(compute_ratio=1.5).applied_to(profile).layers[0]
    assert (scaled.backward_weight_seconds, scaled.accumulation_seconds) == (0.015, 0.006)
    assert scaled.optimizer_seconds == profile.layers[0].optimizer_seconds


def test_predicts_a_recovered_plan_that_was_never_measured():
    truth = Calibration(compute_ratio=1.05, alpha_seconds=7e-4, beta_seconds_per_byte=3e-10)
    plan, cluster = plan_of(SMALL, 2, 3, 8)
    job = JobSettings(num_microbatches=8, policy=Policy.DATA_REROUTING)
    alive = tuple(worker for worker in cluster.by_id if worker != "w04")
    lost = replan(Snapshot(profile=SMALL, cluster=cluster, settings=job, plan=plan, alive=alive, generation=1)).plan
    actual = estimate(lost, truth.applied_to(SMALL), cluster).iteration_seconds
    step = MeasuredStep(plan=lost, profile=SMALL, cluster=cluster, iteration_seconds=actual)
    assert abs(step.error_ratio()) > 0.04
    assert abs(step.error_ratio(calibrate(measured(truth)))) < 1e-3


def test_what_no_step_depends_on_does_not_make_a_known_step_wrong():
    profile, plan, cluster = PLANS[0]
    step = MeasuredStep(plan=plan, profile=profile, cluster=cluster, iteration_seconds=1.0)
    found = calibrate([step])
    assert step.error_ratio(found) == pytest.approx(0.0, abs=1e-6)


def test_a_calibration_of_nothing_changes_nothing():
    assert Calibration().applied_to(SMALL) == SMALL


def test_needs_steps():
    with pytest.raises(InvalidInputError, match="steps"):
        calibrate([])
