"""Ranks that may not find each other once torchrun starts them again are told of it early."""

import pytest
import structlog

from kintsugi.runtime.plain import PlainRun
from kintsugi.runtime.torchrun.rendezvous import create
from kintsugi.runtime.torchrun.restarts import OWN_RENDEZVOUS
from tests.runtime.torchrun.test_rendezvous import parameters


@pytest.fixture(autouse=True)
def ranks_environment(monkeypatch):
    """As torchrun's own rendezvous leave it, but for the launcher that a rank would end with."""
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv(OWN_RENDEZVOUS, "")
    monkeypatch.delenv(OWN_RENDEZVOUS)


def warnings(folder):
    with structlog.testing.capture_logs() as log:
        PlainRun(folder, num_samples=4, global_batch_size=2, num_steps=2).close()
    return [line["max_restarts"] for line in log if line["log_level"] == "warning"]


def test_restarts_at_a_store_that_is_kept_are_warned_of(tmp_path):
    assert warnings(tmp_path) == [3]


@pytest.mark.parametrize(("name", "value"), [("TORCHELASTIC_MAX_RESTARTS", "0"), ("TORCHELASTIC_USE_AGENT_STORE", "False")])
def test_nobody_is_warned_where_all_is_well(tmp_path, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert warnings(tmp_path) == []


def test_nobody_is_warned_whose_agents_meet_at_the_service(tmp_path):
    create(parameters("127.0.0.1:9"))._keys.close()
    assert warnings(tmp_path) == []
