"""The commands plan and replan, as the contract describes them."""

import json
from dataclasses import replace

import pytest

from kintsugi.cli import main
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster, Worker
from kintsugi.core.decision import Decision, Search
from kintsugi.core.plan import Plan
from kintsugi.core.profile import OptimizerSharding
from tests.builders import RECOVERY, transformer_profile, uniform_profile


@pytest.fixture
def profile(tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(codec.dumps(transformer_profile(6)))
    return str(path)


def run(capsys, *arguments):
    """Exit status and the JSON document on stdout."""
    with pytest.raises(SystemExit) as caught:
        main([*arguments, "--format", "json"])
    return caught.value.code, json.loads(capsys.readouterr().out)


def test_plan_prints_plan_estimate_and_search(capsys, profile):
    status, document = run(capsys, "plan", "--profile", profile, "--workers", "8", "--num-microbatches", "16")
    assert status == 0
    assert set(document) == {"plan", "estimate", "search"}
    assert codec.decode(Plan, document["plan"]).num_microbatches == 16
    assert codec.decode(Search, document["search"]).gap_ratio >= 0
    assert document["estimate"]["reconfiguration_seconds"] == 0


def test_replan_prints_the_decision(capsys, profile):
    status, document = run(
        capsys, "replan", "--profile", profile, "--dp", "2", "--pp", "4", "--num-microbatches", "16", "--fail", "1/2"
    )
    assert status == 0
    decision = codec.decode(Decision, document)
    assert decision.previous_plan is not None
    assert decision.previous_plan.pipelines[1].stages[2].worker == "w06"
    assert "w06" not in decision.plan.workers
    assert decision.policy in {item.policy for item in decision.alternatives}


def test_replan_goes_on_from_what_replan_printed(capsys, profile, tmp_path):
    common = ("--profile", profile, "--num-microbatches", "16")
    _, first = run(capsys, "replan", *common, "--dp", "2", "--pp", "4", "--fail", "w06", "--policy", "data_rerouting")
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(first))
    status, second = run(capsys, "replan", *common, "--plan", str(path), "--fail", "0/0", "--join", "1")
    assert status == 0
    decision = codec.decode(Decision, second)
    assert decision.plan.generation == first["plan"]["generation"] + 1
    known = {*decision.plan.workers, *(idle.worker for idle in decision.plan.idle_workers)}
    assert known == {"w01", "w02", "w03", "w04", "w05", "w07", "w06"}  # w06 is the one that joins


def test_a_plan_is_priced_with_its_reductions_and_refused_with_some_of_them(capsys, profile, tmp_path):
    common, path = ("--profile", profile, "--num-microbatches", "16"), tmp_path / "plan.json"
    _, first = run(capsys, "plan", *common, "--workers", "8", "--min-dp", "2", "--max-dp", "2")
    known = first["plan"]["rounds"]
    answers = []
    for rounds in (known, [], known[:1]):
        first["plan"]["rounds"] = rounds
        path.write_text(json.dumps(first))
        answers.append(run(capsys, "replan", *common, "--plan", str(path)))
    (_, whole), (_, without), (status, part) = answers
    assert without["estimate"] == whole["estimate"]
    assert without["plan"]["rounds"]
    assert (status, part["error"]["field"]) == (2, "plan.rounds")


def test_workers_that_are_as_fast_as_the_others_again_are_planned_for(capsys, profile, tmp_path):
    """A plan says nothing of speeds: where the cluster does, it is searched for a better one."""
    common = ("--profile", profile, "--num-microbatches", "16")
    clusters = {}
    for name, speed_ratio in (("slow", 0.25), ("equal", 1.0)):
        cluster = Cluster.uniform(6)
        clusters[name] = str(tmp_path / f"{name}.json")
        workers = (replace(cluster.workers[0], speed_ratio=speed_ratio), *cluster.workers[1:])
        (tmp_path / f"{name}.json").write_text(codec.dumps(cluster.with_workers(workers)))
    _, slow = run(capsys, "plan", *common, "--cluster", clusters["slow"])
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(slow))
    _, best = run(capsys, "plan", *common, "--cluster", clusters["equal"])
    assert best["estimate"]["iteration_seconds"] < slow["estimate"]["iteration_seconds"]
    status, document = run(capsys, "replan", *common, "--plan", str(path), "--cluster", clusters["equal"])
    assert (status, document["estimate"]["iteration_seconds"]) == (0, best["estimate"]["iteration_seconds"])


def test_a_plan_that_names_a_worker_beyond_the_most_of_a_job_is_refused(capsys, profile, tmp_path):
    common = ("--profile", profile, "--num-microbatches", "16")
    _, first = run(capsys, "plan", *common, "--workers", "2")
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(first).replace("w01", "w10000000000000"))
    status, document = run(capsys, "replan", *common, "--plan", str(path))
    assert (status, document["error"]["field"], document["error"]["value"]) == (2, "plan", "w10000000000000")


def test_a_host_takes_its_workers_along(capsys, profile):
    grid = ("--dp", "2", "--pp", "4", "--workers-per-host", "2")
    status, document = run(capsys, "replan", "--profile", profile, *grid, "--num-microbatches", "16", "--fail-host", "1")
    assert status == 0
    assert not {"w02", "w03"} & set(codec.decode(Decision, document).plan.workers)


def test_a_cluster_file_names_the_workers(capsys, profile, tmp_path):
    path = tmp_path / "cluster.json"
    path.write_text(codec.dumps(Cluster.uniform(4)))
    status, document = run(capsys, "plan", "--profile", profile, "--cluster", str(path), "--num-microbatches", "8")
    assert status == 0
    assert set(codec.decode(Plan, document["plan"]).workers) <= {"w00", "w01", "w02", "w03"}


@pytest.mark.parametrize(
    ("arguments", "status", "field"),
    [
        (("--workers", "8", "--num-microbatches", "0"), 2, "num_microbatches"),
        (("--workers", "8", "--num-microbatches", "100000"), 2, "num_microbatches"),
        (("--workers", "0", "--num-microbatches", "8"), 2, "workers"),
        (("--num-microbatches", "8"), 2, "workers"),
        (("--workers", "8", "--num-microbatches", "8", "--min-dp", "4", "--max-dp", "2"), 2, "max_dp"),
        (("--workers", "8", "--num-microbatches", "4", "--min-dp", "5"), 2, "min_dp"),
        (("--workers", "2", "--num-microbatches", "8", "--min-dp", "3"), 1, "workers"),
        (("--workers", "eight", "--num-microbatches", "8"), 2, None),
        (("--workers", "131073", "--num-microbatches", "8"), 2, "workers"),
        (("--workers", "10000000000000", "--num-microbatches", "8"), 2, "workers"),
    ],
)
def test_bad_input_to_plan(capsys, profile, arguments, status, field):
    code, document = run(capsys, "plan", "--profile", profile, *arguments)
    assert code == status
    assert set(document["error"]) >= {"code", "field", "value", "message"}
    if field is not None:
        assert document["error"]["field"] == field


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("--dp", "2", "--pp", "4", "--fail", "2/0"), "fail"),
        (("--dp", "2", "--pp", "4", "--fail", "w03", "--fail", "0/3"), "fail"),
        (("--dp", "2", "--pp", "4", "--fail", "w99"), "fail"),
        (("--dp", "2", "--pp", "4", "--fail", "9" * 5000 + "/0"), "fail"),
        (("--dp", "2", "--pp", "4", "--fail", "0/" + "9" * 5000), "fail"),
        (("--dp", "2", "--pp", "4", "--fail-host", "99"), "fail_host"),
        (("--dp", "2", "--pp", "4", "--fail-host", "9" * 5000), "fail_host"),
        (("--dp", "2", "--pp", "4", "--fail-host", "3", "--fail-host", "h03"), "fail_host"),
        (("--dp", "2", "--pp", "4", "--fail", "w03", "--fail-host", "3"), "fail_host"),
        (("--dp", "2"), "pp"),
        (("--dp", "20", "--pp", "1"), "dp"),
        (("--dp", "1", "--pp", "20"), "pp"),
        (("--dp", "2", "--pp", "10000000000000"), "pp"),
        (("--dp", "10000000000000", "--pp", "1"), "dp"),
        (("--dp", "2", "--pp", "4", "--join", "131065"), "join"),
        (("--dp", "2", "--pp", "4", "--join", "10000000000000"), "join"),
    ],
)
def test_bad_input_to_replan(capsys, profile, arguments, field):
    code, document = run(capsys, "replan", "--profile", profile, "--num-microbatches", "16", *arguments)
    assert code == 2
    assert document["error"]["field"] == field


def test_replan_names_the_option_whatever_it_starts_from(capsys, profile, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(run(capsys, "plan", "--profile", profile, "--workers", "8", "--num-microbatches", "16")[1]))
    for start in (("--plan", str(path)), ("--dp", "2", "--pp", "4")):
        code, document = run(capsys, "replan", "--profile", profile, *start, "--num-microbatches", "100000")
        assert (code, document["error"]["field"]) == (2, "num_microbatches")


@pytest.mark.parametrize(
    ("lost", "told"),
    [
        (("--fail", "w99"), "it has w00, w01, w02, w03, w04, w05, w06, w07"),
        (("--fail-host", "h1"), "it has h00, h01, h02, h03, h04, h05, h06, h07"),
    ],
)
def test_who_cannot_fail_is_told_who_can(capsys, profile, lost, told):
    arguments = ("--profile", profile, "--dp", "2", "--pp", "4", "--num-microbatches", "16")
    assert told in run(capsys, "replan", *arguments, *lost)[1]["error"]["message"]


def test_a_clusters_file_says_itself_who_shares_a_host(capsys, profile, tmp_path):
    path = tmp_path / "cluster.json"
    path.write_text(codec.dumps(Cluster.uniform(2)))
    common = ("--profile", profile, "--cluster", str(path), "--num-microbatches", "8", "--workers-per-host", "2")
    for command in (("plan",), ("replan", "--dp", "1", "--pp", "2")):
        status, document = run(capsys, *command, *common)
        assert (status, document["error"]["field"]) == (2, "workers_per_host")
    status, document = run(capsys, "replan", "--dp", "1", "--pp", "2", *common, "--join", "2")
    assert (status, "plan" in document) == (0, True)


def test_idle_workers_are_summed_up(capsys, profile):
    arguments = ("--profile", profile, "--workers", "2000", "--num-microbatches", "2", "--max-pp", "1")
    with pytest.raises(SystemExit):
        main(["plan", *arguments])
    lines = capsys.readouterr().out.splitlines()
    assert sum("is idle: " in line for line in lines) == 8
    assert any(line.startswith("1,990 more are idle: ") for line in lines)
    assert len(run(capsys, "plan", *arguments)[1]["plan"]["idle_workers"]) == 1998


@pytest.mark.parametrize("policy", [("--policy", "nonsense"), ("--policy=nonsense",)])
def test_what_an_option_cannot_be_is_told_with_its_value(capsys, profile, policy):
    grid = ("--dp", "2", "--pp", "4", "--num-microbatches", "16")
    code, document = run(capsys, "replan", "--profile", profile, *grid, *policy)
    assert code == 2
    assert document["error"]["field"] == "policy"
    assert document["error"]["value"] == "nonsense"
    assert "Value error" not in document["error"]["message"]
    with pytest.raises(SystemExit):
        main(["replan", "--profile", profile, *grid, *policy])
    told = capsys.readouterr().err
    assert "'nonsense' is not one of" in told
    assert "Value error" not in told


def test_an_option_that_is_missing_has_no_value(capsys, profile):
    code, document = run(capsys, "plan", "--profile", profile, "--workers", "8")
    assert code == 2
    assert (document["error"]["field"], document["error"]["value"]) == ("num_microbatches", None)


def test_newcomers_take_names_and_hosts_that_nobody_has(capsys, profile, tmp_path):
    path = tmp_path / "cluster.json"
    workers = (Worker(id="w00", host="h00"), Worker(id="w02", host="h02"))
    path.write_text(codec.dumps(Cluster(name="gaps", workers=workers)))
    grid = ("--dp", "1", "--pp", "2", "--num-microbatches", "16", "--cluster", str(path), "--join", "2")
    status, document = run(capsys, "replan", "--profile", profile, *grid)
    assert status == 0
    decision = codec.decode(Decision, document)
    assert {*decision.plan.workers, *(idle.worker for idle in decision.plan.idle_workers)} == {"w00", "w01", "w02", "w03"}


def test_lost_state_is_an_answer_too(capsys, profile):
    lost = ("--fail", "0/3", "--fail", "1/3")
    code, document = run(capsys, "replan", "--profile", profile, "--dp", "2", "--pp", "4", "--num-microbatches", "16", *lost)
    assert code == 1
    assert document["error"]["code"] == "state_lost"


def test_what_comes_from_the_checkpoint_is_told(capsys, tmp_path):
    recovery = replace(RECOVERY, checkpoint_interval_seconds=600.0, checkpoint_read_bytes_per_second=1e9)
    path = tmp_path / "profile.json"
    path.write_text(codec.dumps(uniform_profile(8, optimizer_sharding=OptimizerSharding.ZERO1, recovery=recovery)))
    lost = ("--fail", "1/2", "--policy", "data_rerouting")
    with pytest.raises(SystemExit) as caught:
        main(["replan", "--profile", str(path), "--dp", "2", "--pp", "4", "--num-microbatches", "16", *lost])
    assert caught.value.code == 0
    assert "0.4 GB of optimizer state of layers 4, 5 come from the last checkpoint" in capsys.readouterr().out


def test_tables_are_for_people(capsys, profile):
    with pytest.raises(SystemExit) as caught:
        main(["replan", "--profile", profile, "--dp", "2", "--pp", "4", "--num-microbatches", "16", "--fail", "1/2"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "alternatives" in text
    assert "w00" in text
    assert all(word in text for word in ("with", "expected", "restart")), "the column that policies are compared by"


def test_a_narrow_terminal_tells_every_policy_by_its_whole_name(capsys, profile, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    pinned = ("--policy", "data_rerouting")
    with pytest.raises(SystemExit):
        main(["replan", "--profile", profile, "--dp", "2", "--pp", "4", "--num-microbatches", "16", "--fail", "1/2", *pinned])
    text = capsys.readouterr().out
    assert "…" not in text
    assert text.startswith("data_rerouting: pinned by the job")
    for policy in ("data_rerouting", "spare_substitution", "dynamic_parallelism", "checkpoint_restart"):
        assert f"│ {policy} " in text
    assert "spare_substitution: alive: no living worker is idle" in text


def heavy(tmp_path):
    """A profile of much state and small gradients: two steps win."""
    changes = {"parameter_bytes": 50_000_000_000, "gradient_bytes": 1_000_000}
    path = tmp_path / "heavy.json"
    path.write_text(codec.dumps(uniform_profile(8, layer_changes=changes, memory_bytes=10**12)))
    return ("--profile", str(path), "--dp", "2", "--pp", "4", "--num-microbatches", "16", "--fail", "w03")


def test_two_steps_are_considered_where_they_are_allowed(capsys, tmp_path):
    _, without = run(capsys, "replan", *heavy(tmp_path))
    status, document = run(capsys, "replan", *heavy(tmp_path), "--allow-follow-up")
    assert (status, without["follow_up"], document["policy"]) == (0, None, "deferred_parallelism")
    assert document["follow_up"]["after_steps"] > 0
    with pytest.raises(SystemExit):
        main(["replan", *heavy(tmp_path), "--allow-follow-up"])
    assert f"after {document['follow_up']['after_steps']} steps: " in capsys.readouterr().out


def test_two_steps_that_are_not_allowed_cannot_be_pinned(capsys, tmp_path):
    status, document = run(capsys, "replan", *heavy(tmp_path), "--policy", "deferred_parallelism")
    assert (status, document["error"]["field"]) == (2, "policy")
    assert "--allow-follow-up" in document["error"]["message"]


def test_a_mean_time_that_is_not_credible_is_refused(capsys, profile):
    arguments = ("--profile", profile, "--dp", "2", "--pp", "4", "--num-microbatches", "16", "--fail", "w00")
    status, document = run(capsys, "replan", *arguments, "--mtbf-seconds", "1e-320")
    assert (status, document["error"]["field"]) == (2, "mtbf_seconds")


@pytest.mark.parametrize(("mtbf_seconds", "is_used"), [("10800", True), ("3", False)])
def test_a_newcomer_is_used_or_ignored(capsys, profile, mtbf_seconds, is_used):
    arguments = ("--profile", profile, "--dp", "2", "--pp", "4", "--num-microbatches", "16", "--join", "1")
    status, document = run(capsys, "replan", *arguments, "--mtbf-seconds", mtbf_seconds)
    decision = codec.decode(Decision, document)
    assert status == 0
    assert ("w08" in decision.plan.workers) is is_used
    assert is_used or "costs more than it brings" in decision.plan.idle_workers[0].reason
