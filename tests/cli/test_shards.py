"""The command shards, as the contract describes it."""

import json

import pytest

from kintsugi.cli import main

FAST = {"id": "fast", "propagation_seconds": 0.5, "ready_seconds": 0, "beta_seconds_per_byte": 1}
SLOW = {"id": "slow", "propagation_seconds": 0, "ready_seconds": 0.5, "beta_seconds_per_byte": 3}
REQUEST = {"num_shards": 8, "shard_bytes": 2, "min_shards_per_neighbor": 0, "neighbors": [FAST, SLOW]}


@pytest.fixture
def ask(capsys, tmp_path):
    """Run the command on a document; returns exit status and standard output."""

    def run(document, *arguments):
        path = tmp_path / "input.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        with pytest.raises(SystemExit) as caught:
            main(["shards", "--input", str(path), *arguments])
        return caught.value.code, capsys.readouterr().out

    return run


def ask_json(ask, document):
    status, text = ask(document, "--format", "json")
    return status, json.loads(text)


def test_counts_makespan_and_time(ask):
    status, answer = ask_json(ask, REQUEST)
    assert status == 0
    assert set(answer) >= {"makespan_seconds", "counts", "elapsed_seconds"}
    assert answer["counts"] == {"fast": 6, "slow": 2}
    assert answer["makespan_seconds"] == 12.5
    assert answer["elapsed_seconds"] > 0


def test_everybody_sends_one_by_default(ask):
    request = {name: value for name, value in REQUEST.items() if name != "min_shards_per_neighbor"}
    useless = {**SLOW, "id": "useless", "ready_seconds": 100.0}
    _, answer = ask_json(ask, {**request, "neighbors": [FAST, useless]})
    assert answer["counts"] == {"fast": 7, "useless": 1}
    _, answer = ask_json(ask, {**REQUEST, "neighbors": [FAST, useless]})
    assert answer["counts"] == {"fast": 8, "useless": 0}


def test_tables_are_for_people(ask):
    status, text = ask(REQUEST)
    assert status == 0
    assert "fast" in text
    assert "12.5 s" in text


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_shards": 0}, "num_shards"),
        ({"num_shards": 1.5}, "num_shards"),
        ({"num_shards": True}, "num_shards"),
        ({"num_shards": 3, "min_shards_per_neighbor": 2}, "num_shards"),
        ({"shard_bytes": -1}, "shard_bytes"),
        ({"shard_bytes": 10**30}, "shard_bytes"),
        ({"min_shards_per_neighbor": -1}, "min_shards_per_neighbor"),
        ({"min_shards_per_neighbor": None}, "min_shards_per_neighbor"),
        ({"neighbors": []}, "neighbors"),
        ({"neighbors": {"fast": FAST}}, "neighbors"),
        ({"neighbors": [FAST, FAST]}, "neighbors[1].id"),
        ({"neighbors": [FAST, {**SLOW, "id": ""}]}, "neighbors[1].id"),
        ({"neighbors": [FAST, {**SLOW, "propagation_seconds": -1}]}, "neighbors[1].propagation_seconds"),
        ({"neighbors": [FAST, {**SLOW, "ready_seconds": "soon"}]}, "neighbors[1].ready_seconds"),
        ({"neighbors": [{**FAST, "beta_seconds_per_byte": 1e300}]}, "neighbors[0].beta_seconds_per_byte"),
        ({"neighbors": [{**FAST, "bandwidth": 1}]}, "neighbors[0].bandwidth"),
        ({"neighbors": [{"id": "fast"}]}, "neighbors[0].propagation_seconds"),
        ({"shards": 3}, "shards"),
    ],
)
def test_every_bad_field_is_named(ask, changes, field):
    status, answer = ask_json(ask, {**REQUEST, **changes})
    assert status == 2
    assert answer["error"]["code"] == "invalid_input"
    assert answer["error"]["field"] == field


@pytest.mark.parametrize("field", ["num_shards", "shard_bytes", "neighbors"])
def test_missing_fields_are_named(ask, field):
    status, answer = ask_json(ask, {name: value for name, value in REQUEST.items() if name != field})
    assert status == 2
    assert answer["error"]["field"] == field


@pytest.mark.parametrize("number", ["1e999", "-1e999"])
def test_a_number_beyond_all_range_is_told_in_json(ask, number):
    status, text = ask(json.dumps(REQUEST).replace('"num_shards": 8', f'"num_shards": {number}'), "--format", "json")
    error = json.loads(text, parse_constant=pytest.fail)["error"]
    assert (status, error["field"], error["value"]) == (2, "num_shards", str(float(number)))


@pytest.mark.parametrize("text", ["", "no JSON", '{"num_shards": NaN}', "[]"])
def test_what_is_no_request_is_refused(ask, text):
    status, answer = ask_json(ask, text)
    assert status == 2
    assert answer["error"]["field"] == "document"


def test_a_file_that_is_not_there_is_named(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["shards", "--input", "absent.json", "--format", "json"])
    assert caught.value.code == 2
    assert json.loads(capsys.readouterr().out)["error"]["field"] == "file"
