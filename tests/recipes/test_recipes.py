"""The recipes run, each against the real service: plain torch loop, torchrun, Slurm, Kubernetes, CI."""

import json
import re
import runpy
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import yaml

from kintsugi.cli import main
from kintsugi.client import Client
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.ending import Outcome
from kintsugi.core.errors import UnavailableError
from kintsugi.core.job import JobSettings, Ranges
from kintsugi.core.membership import Event, EventKind
from kintsugi.core.messages import ReportStatus
from planner.quality import Case
from tests.builders import uniform_profile
from tests.patience import eventually
from tests.recipes.pods import api_server, pod
from tests.services import service

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "examples" / "recipes"
pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """Address of a service."""
    with service(tmp_path_factory.mktemp("recipes") / "kintsugi.sqlite3", "--log-level", "error") as running:
        yield running.url


@pytest.fixture
def client(url):
    with Client(url) as client:
        yield client


def create(client, job, workers=6, **settings):
    settings = JobSettings(num_microbatches=12, **settings)
    return client.create_job(
        job=job, profile=uniform_profile(4), cluster=Cluster.uniform(workers, workers_per_host=2), settings=settings
    )


def events(client, job):
    return [record.event for record in client.events(job).events]


def until(condition):
    """What `condition` gives once it is true."""
    found = eventually(condition)
    assert found, "it never came"
    return found


@contextmanager
def recipe(name, *arguments):
    """A running recipe, ended at the end."""
    command = [sys.executable, str(RECIPES / name), *arguments]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            yield process
        finally:
            process.kill()


def slurm(url, **environment):
    """Run the epilog as Slurm does, without PATH; its standard error."""
    given = {"SLURM_JOB_ID": "4711", "KINTSUGI_URL": url, "KINTSUGI_SETTINGS": "/dev/null", **environment}
    result = subprocess.run(
        ["/bin/bash", RECIPES / "slurm_epilog.sh"], env=given, capture_output=True, text=True, timeout=110, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stderr


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
class TestSlurm:
    def test_a_node_and_a_task_that_ended_are_told_once(self, url, client):
        create(client, "slurm-4711")
        for _ in range(2):
            assert slurm(url, SLURMD_NODENAME="h00") == ""
        assert slurm(url, SLURMD_NODENAME="h01", SLURM_PROCID="3", SLURM_RESTART_COUNT="1") == ""
        first, second = events(client, "slurm-4711")
        assert (first.kind, first.host, first.id) == (EventKind.HOST_FAILED, "h00", "slurm-4711.0-h00")
        assert (second.kind, second.worker, second.generation) == (EventKind.WORKER_FAILED, "w03", 1)
        assert client.plan("slurm-4711").generation == 2

    def test_a_job_that_ended_well_and_one_that_nobody_knows(self, url, client):
        create(client, "epilog")
        assert slurm(url, KINTSUGI_JOB="epilog", SLURMD_NODENAME="h00", SLURM_JOB_EXIT_CODE="0") == ""
        assert events(client, "epilog") == []
        told = slurm(url, KINTSUGI_JOB="nobody", SLURMD_NODENAME="h00")
        assert "there is no job of this id" in told
        assert "nothing was reported" in told
        assert "refused" in slurm(url, KINTSUGI_JOB="epilog", SLURMD_NODENAME="h99")
        assert "KINTSUGI_URL" in slurm("", SLURMD_NODENAME="h00")

    def test_a_url_may_end_in_a_slash_and_of_a_job_that_ended_at_the_service_nothing_is_reported(self, url, client):
        create(client, "done")
        assert slurm(f"{url}/", KINTSUGI_JOB="done", SLURM_PROCID="3") == ""
        client.end("done", Outcome.COMPLETED)
        told = slurm(f"{url}/", KINTSUGI_JOB="done", SLURM_PROCID="4")
        assert "refused" not in told
        assert "nothing was reported" not in told
        assert [event.worker for event in events(client, "done")] == ["w03"]

    def test_an_event_after_which_there_is_no_plan_is_reported_all_the_same(self, url, client):
        create(client, "last", workers=2)
        told = slurm(url, KINTSUGI_JOB="last", SLURMD_NODENAME="h00")
        assert "taken, without a plan" in told
        assert "no worker is left" in told
        assert "nothing was reported" not in told
        assert len(events(client, "last")) == 1


def watching(job, url, address):
    return recipe("kubernetes_watcher.py", "--job", job, "--namespace", "training", "--service", url, "--kubernetes", address)


def test_pods_that_leave_die_and_come_back_are_told(url, client):
    create(client, "llama")
    first, old, new = pod("a-0", "u0", "w00", 1), pod("a-3", "u3", "w03", 2), pod("a-3", "u3b", "w03", 9)
    leaving = pod("a-0", "u0", "w00", 3, deletionTimestamp="2026-01-31T12:00:00Z", deletionGracePeriodSeconds=30)
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "5"}}}
    streams = [
        [
            {"type": "MODIFIED", "object": leaving},
            {"type": "MODIFIED", "object": pod("a-3", "u3", "w03", 4, "Failed")},
            bookmark,
        ],
        [{"type": "DELETED", "object": pod("a-3", "u3", "w03", 6)}, {"type": "ERROR", "object": {"code": 410}}],
        [{"type": "ADDED", "object": pod("a-3", "u3b", "w03", 8, ready=False)}, {"type": "MODIFIED", "object": new}],
    ]
    lists = [{"metadata": {"resourceVersion": "2"}, "items": [first, old]}, {"metadata": {"resourceVersion": "7"}, "items": []}]
    with api_server(lists, streams) as (address, queries), watching("llama", url, address):
        until(lambda: len(events(client, "llama")) == 4)
    found = events(client, "llama")
    assert [(event.kind.value, event.worker, event.incarnation) for event in found] == [
        ("worker_draining", "w00", 0),
        ("worker_failed", "w03", 0),
        ("worker_failed", "w00", 0),  # deleted while the list was to be read anew
        ("worker_joined", "w03", 1),
    ]
    assert found[0].deadline_seconds == 30
    assert all(query["labelSelector"] == ["kintsugi/job=llama"] for query in queries)
    assert [query["resourceVersion"] for query in queries if "watch" in query][:3] == [["2"], ["5"], ["7"]]


def test_a_watcher_that_is_started_again_goes_on_counting_lives_where_it_was(url, client):
    """Pods that came while nobody watched are told, none as a past life; of those listed by name the younger may come first."""
    create(client, "again")
    again = [{"type": "ERROR", "object": {"code": 410}}]
    old, new = pod("a-z", "u0", "w00", 1, "Failed"), pod("a-b", "u1", "w00", 2)
    lists = [
        [new, old],
        [new],  # told of already
        [pod("a-c", "u2", "w00", 3)],  # it took the place of the other one meanwhile
        [pod("a-c", "u2", "w00", 4, "Failed"), pod("a-d", "u3", "w00", 5)],
    ]
    for items, number in zip(lists, (2, 2, 3, 5), strict=True):
        listed = [{"metadata": {"resourceVersion": "9"}, "items": items}]
        with api_server(listed, [again]) as (address, queries), watching("again", url, address):
            until(lambda number=number: len(events(client, "again")) == number)
            until(lambda queries=queries: sum("watch" in query for query in queries) == 2)
    assert [(event.id, event.incarnation) for event in events(client, "again")] == [
        ("u0.failed", 0),
        ("u1.joined", 1),
        ("u2.joined", 2),
        ("u2.failed", 2),
        ("u3.joined", 3),
    ]
    assert "w00" in client.job("again").alive


def test_a_pod_that_is_no_worker_is_left_out_with_one_line(url, client):
    create(client, "launched")
    launcher = pod("launcher", "u", "", 1, "Failed")
    del launcher["metadata"]["labels"]["kintsugi/worker"]
    lists = [{"metadata": {"resourceVersion": "2"}, "items": [launcher, pod("a-0", "u0", "w00", 1, "Failed")]}]
    stream = [{"type": "MODIFIED", "object": launcher}, {"type": "ERROR", "object": {"code": 410}}]
    with api_server(lists, [stream]) as (address, queries), watching("launched", url, address) as process:
        until(lambda: sum("watch" in query for query in queries) == 2)
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=240.0)[0].decode()
    assert output.splitlines() == [
        "pod launcher: left out, for no label kintsugi/worker names its worker",
        "worker_failed w00: generation 1",
    ]


def test_pods_of_a_job_that_ended_are_watched_no_more(url, client):
    create(client, "over")
    gone = [{"type": "DELETED", "object": pod("a-0", "u0", "w00", 3)}]
    lists = [{"metadata": {"resourceVersion": "2"}, "items": [pod("a-0", "u0", "w00", 1)]}]
    client.end("over", Outcome.COMPLETED)
    with api_server(lists, [gone]) as (address, _), watching("over", url, address) as process:
        output = process.communicate(timeout=240.0)[0].decode()
    assert output == "job over has ended\n"
    assert events(client, "over") == []


def test_pods_that_the_service_refuses_are_told_once_and_keep_nobody_else_from_being_told(url, client):
    """Lost are one that is no worker, then all there are; two take their places, for whom no plan exists either."""
    create(client, "refused", workers=2)
    lost = [pod(f"a-{n}", f"u{n}", worker, 1, "Failed") for n, worker in enumerate(("w77", "w00", "w01"))]
    new = [pod(f"b-{n}", f"v{n}", worker, 2) for n, worker in enumerate(("w00", "w01"))]
    lists = [{"metadata": {"resourceVersion": "2"}, "items": [*lost, *new]}]
    again = [{"type": "ERROR", "object": {"code": 410}}]
    with api_server(lists, [again]) as (address, queries), watching("refused", url, address) as process:
        until(lambda: len(events(client, "refused")) == 4)
        until(lambda: sum("watch" in query for query in queries) == 2)
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=240.0)[0].decode()
    assert [(event.kind.value, event.worker) for event in events(client, "refused")] == [
        ("worker_failed", "w00"),
        ("worker_failed", "w01"),
        ("worker_joined", "w00"),
        ("worker_joined", "w01"),
    ]
    assert output.count("worker_failed w77: refused: worker: is no worker of the job's cluster") == 1
    assert output.count("worker_failed w01: taken, without a plan: alive: no worker is left") == 1
    assert "goes on after" not in output


def test_a_pod_whose_event_does_not_get_through_holds_up_its_own_worker_alone():
    watcher = SimpleNamespace(**runpy.run_path(str(RECIPES / "kubernetes_watcher.py")))
    told, away = [], {"w00"}

    def post_event(job, event, *, brief):
        if event.worker in away:
            raise UnavailableError("the service answers 500")
        told.append(event.id)
        return SimpleNamespace(generation=0)

    untold = watcher.Untold(Mock(**{"plan.return_value.generation": 0, "post_event.side_effect": post_event}), "job")
    for name, worker in (("a", "w00"), ("b", "w01"), ("c", "w00"), ("a", "w00")):
        untold.add(Event(kind=EventKind.WORKER_FAILED, id=name, generation=0, worker=worker))
    with pytest.raises(UnavailableError):
        untold.tell()
    assert told == ["b"]
    away.clear()
    untold.tell()
    assert told == ["b", "a", "c"]


def test_a_plain_loop_follows_the_plans(url, client):
    with recipe("plain_loop.py", "--service", url, "--job", "plain-loop", "--steps", "1000000") as process:
        until(lambda: "plain-loop" in {job.id for job in client.jobs().jobs})

        def is_told(status, generation):
            told = [record.report for record in client.reports("plain-loop").reports]
            return any(report.status is status and report.generation == generation for report in told)

        until(lambda: is_told(ReportStatus.APPLIED, 0))  # else it may begin with the plan after the event
        generation = client.post_event("plain-loop", Event(kind=EventKind.HOST_FAILED, id="e", generation=0, host="h01")).generation
        until(lambda: is_told(ReportStatus.APPLIED, generation))
        until(lambda: is_told(ReportStatus.MEASURED, generation))  # steps later: what it printed of the plan is out by then
        process.terminate()
        output = process.communicate(timeout=240.0)[0].decode()
    assert f"generation {generation}" in output


def test_a_plain_loop_says_that_it_is_complete(url, client):
    with recipe("plain_loop.py", "--service", url, "--job", "short-loop", "--steps", "1") as process:
        process.communicate(timeout=240.0)
    assert client.job("short-loop").ended.ending.outcome is Outcome.COMPLETED


def test_a_plain_loop_whose_service_is_nowhere_says_so_without_a_traceback():
    with recipe("plain_loop.py", "--service", "127.0.0.1:8000", "--steps", "1") as process:
        output = process.communicate(timeout=240.0)[0].decode()
    assert process.returncode == 1
    assert output.startswith("plain_loop: url: is no URL of a service; write it as http://127.0.0.1:8000")


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("torchrun_ddp.py", "--service http://127.0.0.1:8000", "start it by torchrun: "),
        ("kubernetes_watcher.py", "--job llama --service http://127.0.0.1:8000", "kubernetes_watcher: kubernetes: is needed"),
        ("kubernetes_watcher.py", "--job llama --service nowhere --kubernetes http://[::1]:1", "kubernetes_watcher: url: "),
    ],
)
def test_a_recipe_that_cannot_begin_says_why_without_a_traceback(name, arguments, why, monkeypatch):
    for given in ("TORCHELASTIC_RUN_ID", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(given, raising=False)
    with recipe(name, *arguments.split()) as process:
        output = process.communicate(timeout=240.0)[0].decode()
    assert process.returncode == 1
    assert output.startswith(why)


def test_a_watcher_ends_by_ctrl_c_without_a_traceback(url, client):
    create(client, "interrupted")
    lists = [{"metadata": {"resourceVersion": "1"}, "items": []}]
    with api_server(lists, []) as (address, queries), watching("interrupted", url, address) as process:
        until(lambda: any("watch" in query for query in queries))
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=240.0)[0].decode()
    assert (process.returncode, output) == (130, "")


def test_torchrun_on_fewer_ranks_shares_the_work_anew(url, client):
    create(client, "elastic", workers=2, ranges=Ranges(max_pp=1))
    text = (RECIPES / "torchrun_ddp.py").read_text()
    written = re.search(r"^    RUN=elastic-\$\(date \+%s\)\n    torchrun (.*?)\n\n", text, re.MULTILINE | re.DOTALL)
    line = written[1].replace("\\\\\n", "").replace("$RUN", "elastic")
    told = line.replace("127.0.0.1:8000", url.removeprefix("http://")).split()
    command = [sys.executable, "-m", "torch.distributed.run", "--rdzv-conf", "last_call_timeout=1", *told, "--steps", "3"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert result.returncode == 0, result.stderr
    assert "generation 1 on 1 ranks" in result.stdout
    assert "rank 0: 12 of 12 micro-batches" in result.stdout
    assert [(event.kind, event.worker) for event in events(client, "elastic")] == [(EventKind.WORKER_FAILED, "w01")]
    assert client.job("elastic").summary.applied_generation == 1
    assert client.job("elastic").ended.ending.outcome is Outcome.COMPLETED


def test_the_workflow_is_the_documented_one_and_fails_on_a_worse_plan(tmp_path, monkeypatch):
    text = (RECIPES / "plan_quality.yaml").read_text()
    (documented,) = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "docs" / "regression.md").read_text(), re.MULTILINE | re.DOTALL)
    assert yaml.safe_load(text) == yaml.safe_load(documented)
    *_, install, check = [step["run"] for step in yaml.safe_load(text)["jobs"]["regress"]["steps"] if "run" in step]
    assert install.startswith("pip install")
    (tmp_path / "quality" / "cases").mkdir(parents=True)
    case = Case(inline_profile=uniform_profile(4), workers=4, settings=JobSettings(num_microbatches=8))
    (tmp_path / "quality" / "cases" / "first.json").write_text(codec.dumps(case))
    program, *arguments = check.split()
    assert program == "kintsugi"
    monkeypatch.chdir(tmp_path)

    def status(*more):
        with pytest.raises(SystemExit) as ended:
            main([*arguments, *more])
        return ended.value.code

    assert status("--update") == 0
    assert status() == 0
    baseline = tmp_path / "quality" / "baseline.json"
    document = json.loads(baseline.read_text())
    document["cases"]["first"]["iteration_seconds"] *= 0.9
    baseline.write_text(json.dumps(document))
    assert status() == 1
