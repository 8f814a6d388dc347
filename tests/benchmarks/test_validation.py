import json
from dataclasses import replace
from multiprocessing import current_process
from pathlib import Path

import pytest
from pydantic import ValidationError

from benchmarks.step_time import PARTS
from benchmarks.validation import retained, tables
from benchmarks.validation.configurations import FILE, Configurations, job_of, load
from benchmarks.validation.measuring import Phase, first_plan
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.job import JobSettings, Ranges, Snapshot
from kintsugi.runtime.emulation import EmulatedLayer
from planner.replan import replan
from tests.builders import uniform_profile

DOCUMENT = Path(__file__).parents[2] / "docs" / "validation.md"
KNOWN = load()
PROFILE = uniform_profile(8)


def named(name):
    return next(own for own in KNOWN.compared if own.name == name)


def phase_of(configuration, *, measured, estimated, alone=1.0, is_mended=False):
    plan = first_plan(configuration, PROFILE)
    decision = replan(
        Snapshot(
            profile=PROFILE,
            cluster=configuration.cluster,
            settings=JobSettings(num_microbatches=configuration.num_microbatches),
            plan=plan,
            alive=tuple(configuration.cluster.by_id),
            generation=1,
        )
    )
    price = replace(decision.estimate, iteration_seconds=estimated)
    return Phase(configuration, is_mended, replace(decision, estimate=price), alone, measured)


def test_at_least_twelve_configurations_are_compared_and_most_lose_workers():
    assert len(KNOWN.compared) >= 12
    assert sum(bool(own.lost) for own in KNOWN.compared) >= 12
    assert len({own.name for own in KNOWN.compared}) == len(KNOWN.compared)


def test_a_run_cannot_be_calibrated_from_and_compared_with():
    content = json.loads(FILE.read_text())
    own = {"name": "twice", "model": "equal", "dp": 1, "pp": 4, "num_microbatches": 8}
    with pytest.raises(ValidationError, match="DP1 x PP4 is compared with and calibrated from"):
        Configurations.model_validate({**content, "calibration": [*content["calibration"], own]})


@pytest.mark.parametrize("configuration", KNOWN.compared, ids=lambda own: own.name)
def test_every_configuration_has_a_plan_before_and_after_its_loss(configuration):
    cluster, dp = configuration.cluster, configuration.dp_after
    plan = first_plan(configuration, PROFILE)
    assert plan.dp == configuration.dp
    if not configuration.lost:
        return
    settings = JobSettings(
        num_microbatches=configuration.num_microbatches,
        ranges=Ranges() if dp is None else Ranges(min_dp=dp, max_dp=dp),
        schedule=configuration.schedule,
        policy=configuration.policy,
    )
    alive = tuple(worker for worker in cluster.by_id if worker not in configuration.lost)
    assert len(alive) == len(cluster.workers) - len(configuration.lost)
    mended = replan(Snapshot(profile=PROFILE, cluster=cluster, settings=settings, plan=plan, alive=alive, generation=1))
    assert mended.policy is configuration.policy
    assert not set(configuration.lost) & set(mended.plan.workers)


def test_layers_of_a_slow_worker_take_longer_in_its_process_alone(monkeypatch):
    configuration = named("DP2 x PP3, one worker at 0.7 of the speed")
    make_job = job_of(KNOWN.models["equal"], configuration, num_steps=1)

    def forward_seconds():
        layer = make_job().layers[0].build()
        assert isinstance(layer, EmulatedLayer)
        return layer._times.forward_seconds

    usual = forward_seconds()
    monkeypatch.setattr(current_process(), "name", "kintsugi-w01")
    assert usual == pytest.approx(0.012)
    assert forward_seconds() == pytest.approx(0.012 / 0.7)


def test_the_table_tells_errors_of_medians_and_the_largest():
    own = named("DP2 x PP2")
    text = tables.step_times(
        [
            phase_of(own, measured=(1.0, 2.0, 1.1), estimated=1.155, alone=1.0),
            phase_of(own, measured=(1.0,), estimated=0.98, alone=0.9, is_mended=True),
        ]
    )
    assert "| DP2 x PP2, 8 micro-batches | 2 x (4+4) | 1.155 | 1.100 | +5.00% | -9.09% |" in text
    assert "1 configurations, 2 plans: mean error 3.50%, largest 5.00% (profile alone: 9.55% and 10.00%)" in text
    assert "differ by at most 100.0%" in text


def test_a_part_of_a_document_is_replaced_and_the_rest_kept():
    document = "before\n<!-- part: begin -->\nold\n<!-- part: end -->\nafter\n"
    once = tables.replaced(document, "part", "new")
    assert once == "before\n<!-- part: begin -->\n\nnew\n\n<!-- part: end -->\nafter\n"
    assert tables.replaced(once, "part", "new") == once
    with pytest.raises(InvalidInputError, match="once each"):
        tables.replaced(document * 2, "part", "new")
    with pytest.raises(InvalidInputError, match="once each"):
        tables.replaced("no markers", "part", "new")


def test_the_document_has_a_place_for_every_part():
    for part in PARTS:
        tables.replaced(DOCUMENT.read_text(), part, "")


def test_three_quarters_of_the_devices_retain_about_three_quarters():
    setting = retained.SETTINGS[2]
    found = retained.retained(setting, 64)
    assert found.chosen == pytest.approx(setting.published, abs=0.03)
    assert found.rerouted is not None
    assert found.rerouted < found.chosen
    assert f"{setting.name}: {setting.published:.2%} | 64" in retained.table([found])
