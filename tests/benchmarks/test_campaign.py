"""Campaigns as data: every committed file is read, and a bad one is refused with field, value and way out."""

import json
from pathlib import Path

import pytest

from benchmarks.trouble.campaign import Campaign, Kind, load
from kintsugi.core.errors import InvalidInputError

FOLDER = Path(__file__).parents[2] / "benchmarks" / "campaigns"
STRIKE = {"kind": "kill", "at": "forward"}


def campaign_with(strike: dict | None = None, run: dict | None = None, **changes) -> dict:
    runs = [{"name": "one", "dp": 2, "pp": 2, "strikes": [{**STRIKE, **(strike or {})}], **(run or {})}]
    return {"schema_version": 1, "name": "test", "num_steps": 50, "runs": runs, **changes}


def read(tmp_path, document) -> Campaign:
    path = tmp_path / "campaign.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return load(path)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_committed_campaigns_are_read(path):
    campaign = load(path)
    assert campaign.name == path.stem


def test_the_long_campaign_is_as_long_as_asked():
    campaign = load(FOLDER / "long.json")
    assert sum(run.num_faults for run in campaign.runs) >= 200
    assert all(run.min_generations >= 25 for run in campaign.runs)
    kinds = {fault.kind for run in campaign.runs for strike in run.strikes for fault in (strike, *strike.then)}
    assert kinds == set(Kind)


def test_strikes_come_in_an_order_that_the_seed_decides(tmp_path):
    strikes = [{**STRIKE, "after_steps": n} for n in range(12)]
    (run,) = read(tmp_path, campaign_with(run={"strikes": strikes})).runs
    assert run.order(1) == run.order(1) != run.order(2)
    assert sorted(strike.after_steps for strike in run.order(1)) == list(range(12))
    (fixed,) = read(tmp_path, campaign_with(run={"strikes": strikes, "is_shuffled": False})).runs
    assert [strike.after_steps for strike in fixed.order(1)] == list(range(12))


def test_faults_are_counted_without_joins(tmp_path):
    strike = {"repeat": 3, "then": [{"kind": "freeze", "at": "transfer"}]}
    assert read(tmp_path, campaign_with(strike, run={"pp": 3})).runs[0].num_faults == 6
    assert read(tmp_path, campaign_with({**strike, "kind": "join"}, run={"pp": 3})).runs[0].num_faults == 3


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("{", r"FILE: Invalid JSON"),
        (campaign_with(schema_version=2), r"schema_version: Input should be 1 \(got 2"),
        (campaign_with(num_step=3), r"num_step: Extra inputs are not permitted \(got 3"),
        (campaign_with({"kind": "murder"}), r"runs\[0\]\.strikes\[0\]\.kind: Input should be 'kill', .* \(got 'murder'"),
        (campaign_with({"at": "lunch"}), r"strikes\[0\]\.at: Input should be 'start', .* \(got 'lunch'"),
        (campaign_with({"at": "transfer"}), r"runs\[0\]\.strikes\[0\]: a job at rest does not pass this point: use it in `then`"),
        (campaign_with({"at": "start"}), r"nobody who trains passes the point start: use step"),
        (campaign_with({"then": [{"kind": "host"}]}), r"`then` takes kill, freeze, wake and service, not host"),
        (campaign_with({"repeat": 0}), r"repeat: Input should be greater than or equal to 1 \(got 0"),
        (campaign_with(run={"dp": 1}), r"runs\[0\]\.dp: Input should be greater than or equal to 2 \(got 1"),
        (campaign_with(run={"dp": 16, "pp": 3}), r"runs\[0\]: dp x pp = 48 workers: at most 32 run on one machine; lower dp or pp"),
        (
            campaign_with({"kind": "host"}, run={"dp": 2, "pp": 2, "workers_per_host": 2}),
            r"runs\[0\]: a strike takes 2 of 4 workers, and 3 are always left: it would never begin; raise dp or pp",
        ),
        (campaign_with(run={"policy": "data_rerouting"}), r"runs\[0\]\.policy: Input should be .*dynamic_parallelism"),
        (campaign_with(runs=[]), r"runs: Tuple should have at least 1 item"),
        (campaign_with(runs=campaign_with()["runs"] * 2), r"every run needs a name of its own"),
    ],
)
def test_a_bad_campaign_names_field_value_and_way_out(tmp_path, document, said):
    with pytest.raises(InvalidInputError, match=said):
        read(tmp_path, document)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InvalidInputError, match="cannot be read: No such file"):
        load(tmp_path / "nothing.json")
