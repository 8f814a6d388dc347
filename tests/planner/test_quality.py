"""Cases of plan quality: what they come to, and how it is compared."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InvalidInputError, NotFoundError
from kintsugi.core.job import JobSettings, Ranges
from kintsugi.core.plan import Policy
from planner.quality import Case, Change, Figures, Verdict, compare, decide
from tests.builders import uniform_profile

CASE = Case(inline_profile=uniform_profile(8), workers=8, settings=JobSettings(num_microbatches=16))
GRID = Ranges(min_dp=2, max_dp=2, min_pp=4, max_pp=4)
FIGURES = Figures(
    iteration_seconds=2.0, pipeline_seconds=1.0, goodput_samples_per_second=100.0, gap_ratio=0.01, makespan_seconds=3.0
)
HERE = Path()


def test_the_last_change_counts_and_starts_from_the_plan_before():
    case = replace(CASE, first_ranges=GRID, changes=(Change(fail=("w00",)), Change(fail=("w05",))))
    decision, illegal = decide(case, HERE)
    assert illegal == ()
    assert decision.plan.generation == 2
    assert decision.previous_plan is not None
    assert decision.previous_plan.generation == 1
    assert not {"w00", "w05"} & set(decision.plan.workers)


def test_a_pinned_policy_holds_for_the_changes_and_ranges_for_the_first_plan():
    settings = replace(CASE.settings, policy=Policy.DATA_REROUTING)
    decision, _ = decide(replace(CASE, settings=settings, first_ranges=GRID, changes=(Change(fail=("w03",)),)), HERE)
    assert decision.policy is Policy.DATA_REROUTING
    assert decision.plan.dp == 2


def test_hosts_fail_and_workers_join():
    case = replace(CASE, workers_per_host=2, changes=(Change(fail_hosts=("h01",), join=("w99",)),))
    decision, _ = decide(case, HERE)
    known = {*decision.plan.workers, *(idle.worker for idle in decision.plan.idle_workers)}
    assert known == {"w00", "w01", "w04", "w05", "w06", "w07", "w99"}


@pytest.mark.parametrize("lost", [{"fail": ("w01",)}, {"fail_hosts": ("h01",)}])
def test_who_fails_and_joins_in_one_change_comes_back_without_state(lost):
    case = replace(CASE, first_ranges=GRID, changes=(Change(**lost, join=("w01",)),))
    decision, illegal = decide(case, HERE)
    assert illegal == ()
    arriving = {transfer.layer for transfer in decision.migration.transfers if transfer.target == "w01"}
    assert arriving == set(decision.plan.layers_of["w01"]) != set()


def test_files_are_sought_beside_the_case(tmp_path):
    (tmp_path / "profile.json").write_text(codec.dumps(uniform_profile(8)))
    (tmp_path / "cluster.json").write_text(codec.dumps(Cluster.uniform(8)))
    case = replace(CASE, inline_profile=None, profile="profile.json", workers=None, cluster="cluster.json")
    told, inline = decide(case, tmp_path)[0], decide(CASE, HERE)[0]
    assert told.plan == inline.plan


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"profile": "x.json"}, "profile"),
        ({"inline_profile": None}, "profile"),
        ({"workers": None}, "cluster"),
        ({"inline_cluster": Cluster.uniform(2)}, "cluster"),
        ({"workers": 0}, "workers"),
        ({"schema_version": 2}, "schema_version"),
    ],
)
def test_a_case_that_contradicts_itself_is_refused(changes, field):
    with pytest.raises(InvalidInputError) as caught:
        replace(CASE, **changes)
    assert caught.value.field == field


def test_a_change_of_somebody_unknown_is_refused():
    with pytest.raises(NotFoundError):
        decide(replace(CASE, changes=(Change(fail=("w77",)),)), HERE)


def test_a_figure_is_worse_beyond_a_thousandth():
    def verdict(name, factor):
        return compare(FIGURES, replace(FIGURES, **{name: getattr(FIGURES, name) * factor}))[name]

    for name in ("iteration_seconds", "pipeline_seconds", "makespan_seconds"):
        assert [verdict(name, factor) for factor in (0.99, 0.9995, 1.0, 1.0009, 1.0011)] == [
            Verdict.BETTER,
            Verdict.SAME,
            Verdict.SAME,
            Verdict.SAME,
            Verdict.WORSE,
        ]
    assert verdict("goodput_samples_per_second", 0.998) is Verdict.WORSE
    assert verdict("goodput_samples_per_second", 1.002) is Verdict.BETTER


def test_the_gap_is_compared_as_it_is():
    assert compare(FIGURES, replace(FIGURES, gap_ratio=0.0109))["gap_ratio"] is Verdict.SAME
    assert compare(FIGURES, replace(FIGURES, gap_ratio=0.0111))["gap_ratio"] is Verdict.WORSE
    assert compare(replace(FIGURES, gap_ratio=0.0), replace(FIGURES, gap_ratio=0.0005))["gap_ratio"] is Verdict.SAME


def test_a_longer_step_for_a_better_goodput_is_a_trade_and_a_wider_gap_is_not():
    after = replace(FIGURES, iteration_seconds=2.1, gap_ratio=0.06, goodput_samples_per_second=101.0)
    verdicts = compare(FIGURES, after)
    assert verdicts["iteration_seconds"] is Verdict.TRADED
    assert verdicts["gap_ratio"] is Verdict.WORSE


def test_a_migration_where_there_was_none_is_worse():
    assert compare(replace(FIGURES, makespan_seconds=0.0), FIGURES)["makespan_seconds"] is Verdict.WORSE


@given(st.builds(Figures, **dict.fromkeys(codec.encode(FIGURES), st.floats(0, 1e6))))
def test_equal_figures_are_the_same(figures):
    assert set(compare(figures, figures).values()) == {Verdict.SAME}


def test_committed_cases_are_many_and_each_is_in_the_baseline():
    folder = Path(__file__).parents[2] / "benchmarks" / "quality"
    names = {path.stem for path in (folder / "cases").glob("*.json")}
    assert len(names) >= 30
    assert names == set(json.loads((folder / "baseline.json").read_text())["cases"])
