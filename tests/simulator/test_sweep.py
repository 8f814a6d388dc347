"""Sweeps: every combination, in order, the same in any number of processes; and what is made of their results."""

import csv
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kintsugi.core.cluster import Cluster
from kintsugi.core.errors import InvalidInputError
from kintsugi.reporting.intervals import Interval
from kintsugi.simulator import report
from kintsugi.simulator.adviser import Adviser
from kintsugi.simulator.faults import Faults, draw
from kintsugi.simulator.policies import ALL, PUBLISHED, chosen
from kintsugi.simulator.scenario import load
from kintsugi.simulator.simulate import simulate
from kintsugi.simulator.summary import by_seed, ratio, regrets, summarised
from kintsugi.simulator.sweep import executor_for, in_order, run_all, run_one, tasks_of
from tests.builders import RECOVERY, uniform_profile
from tests.simulator.fakes import job

EXAMPLE = Path(__file__).parents[2] / "examples" / "scenario.json"
CHEAP = ("oobleck", "varuna")


@pytest.fixture(scope="module")
def scenario():
    short = load(str(EXAMPLE))
    return replace(short, duration_seconds=14_400.0, faults=replace(short.faults, straggler_mtbf_seconds=None))


@pytest.fixture(scope="module")
def results(scenario):
    tasks = tasks_of(scenario, {"spares": (0, 1), "mtbf": (3600, 36_000)}, CHEAP, range(2))
    return in_order([result for part in run_all(tasks, None) for result in part], tasks)


def test_every_combination_runs_once(results):
    seen = [(dict(r.values)["spares"], dict(r.values)["mtbf"], r.outcome.policy, r.outcome.seed) for r in results]
    assert len(seen) == len(set(seen)) == 2 * 2 * 2 * 2
    assert seen[0] == (0, 3600, "oobleck", 0)
    assert seen == sorted(seen)


@pytest.mark.parametrize("policy", ALL)
def test_every_policy_is_deterministic_and_accounts_for_all_time(scenario, policy):
    quick = replace(scenario, duration_seconds=7200.0, faults=replace(scenario.faults, worker_mtbf_seconds=14_400.0))
    outcome = run_one(quick, policy, 5)
    assert run_one(quick, policy, 5) == outcome
    assert outcome.policy == policy
    assert sum(outcome.seconds.values()) == pytest.approx(7200.0, abs=1e-6)
    assert outcome.num_samples > 0
    assert outcome.num_samples % (16 * 8) == 0


def test_fewer_failures_train_more(results):
    for policy in CHEAP:
        rates = [r.outcome.samples_per_second for r in results if r.outcome.policy == policy and dict(r.values)["spares"] == 0]
        assert sum(rates[:2]) < sum(rates[2:])


@pytest.mark.parametrize("policy", ["kintsugi", "chameleon", "oobleck", "recycle"])
def test_a_faster_device_and_shorter_recoveries_train_more(scenario, policy):
    rates = []
    for forward, regroup in ((0.02, 2.0), (0.02, 60.0), (0.01, 2.0)):
        changes = {"forward_seconds": forward, "gradient_bytes": 0}
        profile = uniform_profile(4, layer_changes=changes, recovery=replace(RECOVERY, regroup_seconds=regroup))
        case = job(profile, faults=Faults(worker_mtbf_seconds=7200.0, repair_seconds=600.0))
        cluster = Cluster.uniform(4)
        incidents = draw(case.faults, cluster, 7200.0, 1)
        adviser = Adviser(ALL[policy](case), case)
        rates.append(simulate(adviser, cluster, incidents, duration_seconds=7200.0, seed=1).samples_per_second)
    slow, paused, fast = rates
    assert paused < slow < fast


def test_summaries_give_means_margins_and_shares(results):
    rows = summarised(results)
    assert len(rows) == 8
    group = [r.outcome.samples_per_second for r in results[:2]]
    assert rows[0].samples_per_second.mean == pytest.approx(sum(group) / 2)
    assert all(sum(row.shares.values()) == pytest.approx(1.0) for row in rows)


def test_intervals_are_students():
    interval = Interval.of([1.0, 2.0, 3.0])
    assert interval.mean == 2.0
    assert interval.margin == pytest.approx(4.302653 * 1.0 / 3**0.5, rel=1e-6)
    assert Interval.of([5.0]).margin is None


def test_ratios_and_regrets():
    ours, theirs = {0: 2.0, 1: 4.0}, {0: 1.0, 1: 3.0}
    assert ratio(ours, theirs).mean == pytest.approx(1.5)
    assert ratio(ours, ours).margin == pytest.approx(0.0)
    assert regrets(ours, [theirs, {0: 2.5, 1: 1.0}]) == {0: pytest.approx(0.2), 1: 0.0}


def test_by_seed_takes_one_policy(results):
    assert set(by_seed(results[:4], "oobleck")) == {0, 1}


def test_csv_files_have_a_line_per_run_and_per_row(results, tmp_path):
    report.write_runs(results, tmp_path / "runs.csv")
    report.write_summary(summarised(results), tmp_path / "summary.csv")
    runs = list(csv.DictReader((tmp_path / "runs.csv").read_text().splitlines()))
    assert len(runs) == 16
    assert float(runs[0]["samples_per_second"]) == results[0].outcome.samples_per_second
    assert sum(float(runs[0][name]) for name in runs[0] if name.endswith("_seconds")) == pytest.approx(14_400.0)
    assert len(list(csv.DictReader((tmp_path / "summary.csv").read_text().splitlines()))) == 8


def test_policies_are_chosen_by_name_and_by_group():
    assert chosen(["recycle", "kintsugi"]) == ("kintsugi", "recycle")
    assert chosen(["published"]) == tuple(PUBLISHED)
    with pytest.raises(InvalidInputError, match="known"):
        chosen(["luck"])


@pytest.mark.parametrize("schedule", ["interleaved", "interleaved-zb", "auto"])
def test_policies_of_one_stage_a_worker_are_refused_under_schedules_of_several(scenario, schedule):
    with pytest.raises(InvalidInputError, match=f"oobleck, recycle are published for .* under schedule '{schedule}'") as caught:
        tasks_of(scenario, {"settings.schedule": ("1f1b", schedule)}, ("oobleck", "recycle", "varuna"), range(1))
    assert (caught.value.field, caught.value.value) == ("policies", ["oobleck", "recycle"])
    assert len(tasks_of(scenario, {"settings.schedule": (schedule,)}, ("varuna", "bamboo"), range(1))) == 2


def test_absurdly_many_runs_are_refused(scenario):
    with pytest.raises(InvalidInputError, match="runs"):
        tasks_of(scenario, {"spares": tuple(range(1000))}, CHEAP, range(10_000))
    with pytest.raises(InvalidInputError, match="1,000,001 runs") as caught:
        tasks_of(scenario, {}, ("oobleck",), range(1_000_001))
    assert caught.value.field == "seeds"


def test_absurdly_many_runs_are_refused_before_they_are_listed(scenario):
    many = dict.fromkeys(("spares", "mtbf", "duration", "microbatches"), range(1, 10_000))
    with pytest.raises(InvalidInputError, match="runs") as caught:
        tasks_of(scenario, many, CHEAP, range(20))
    assert (caught.value.field, caught.value.value["mtbf"]) == ("vary", 9_999)


@pytest.mark.parametrize(("seeds", "processes", "sizes"), [(20, 2, [3] * 6 + [2]), (3, 4, [1, 1, 1]), (60, 1, [25, 25, 10])])
def test_seeds_of_one_policy_are_shared_out_to_all_processes(scenario, seeds, processes, sizes):
    tasks = tasks_of(scenario, {}, ("oobleck",), range(seeds), num_processes=processes)
    assert [len(task.seeds) for task in tasks] == sizes
    assert [seed for task in tasks for seed in task.seeds] == list(range(seeds))


def test_policies_stay_whole_where_there_are_as_many_as_processes(scenario):
    assert [len(task.seeds) for task in tasks_of(scenario, {}, CHEAP, range(20), num_processes=2)] == [20, 20]


@pytest.mark.processes
def test_processes_give_the_same_results(scenario, results):
    tasks = tasks_of(scenario, {"spares": (0, 1), "mtbf": (3600, 36_000)}, CHEAP, range(2))
    with executor_for(2, None) as executor:
        assert executor is not None
        assert in_order([r for part in run_all(tasks, executor) for r in part], tasks) == results


@pytest.mark.processes
def test_a_dask_cluster_gives_the_same_results(scenario, results):
    distributed = pytest.importorskip("distributed")
    tasks = tasks_of(scenario, {"spares": (0, 1), "mtbf": (3600, 36_000)}, CHEAP, range(2))
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        executor_for(None, cluster.scheduler_address) as executor,
    ):
        assert in_order([r for part in run_all(tasks, executor) for r in part], tasks) == results


def test_an_interrupted_sweep_ends_its_processes_without_a_word(capfd):
    def interrupted():
        with executor_for(2, None) as executor:
            futures = [executor.submit(time.sleep, seconds) for seconds in (0.0, 600.0, 600.0, 600.0)]
            futures[0].result()
            raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - began < 60
    assert capfd.readouterr() == ("", "")


def test_a_process_of_a_sweep_takes_an_interrupt_as_its_end():
    with executor_for(2, None) as executor:
        assert executor.submit(signal.getsignal, signal.SIGINT).result() is signal.SIG_DFL
