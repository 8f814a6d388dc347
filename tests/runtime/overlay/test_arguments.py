"""Slips in what a `Coordinator` is given: refused at once, by the argument's name, before anybody is called."""

import pytest
import torch
from torch import nn

from kintsugi.core.errors import InvalidInputError
from kintsugi.runtime.overlay.coordinator import Coordinator
from kintsugi.runtime.overlay.log_copy import LOG_FILE, require_log
from kintsugi.runtime.overlay.standby import StandbyOptions

NOWHERE = "http://127.0.0.1:1"


def joining(**arguments: object) -> Coordinator:
    model = nn.Linear(2, 2)
    given = {"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1), "service": NOWHERE, "job": "job", "worker": "a"}
    return Coordinator(**(given | arguments))


def schedule() -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.StepLR(torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1), 1)


@pytest.mark.parametrize("content", [b"nothing\n", b'{"number": 1}\n', b"\xff\xfe\n"])
def test_a_standby_whose_copy_of_the_log_is_damaged_is_refused_before_it_joins(tmp_path, content):
    """What lies there stays as it is; half a line at its end, as a kill leaves it, is no damage."""
    copy = tmp_path / LOG_FILE
    copy.write_bytes(content)
    with pytest.raises(InvalidInputError) as refused:
        joining(standby=StandbyOptions(folder=tmp_path))
    assert refused.value.field == "standby.folder"
    assert f"{copy} is no copy of a scheduler's log" in str(refused.value)
    assert copy.read_bytes() == content
    copy.write_bytes(b'{"numb')
    require_log(copy)
    assert copy.read_bytes() == b'{"numb'


@pytest.mark.parametrize(
    ("arguments", "field", "way_out"),
    [
        ({"model": None}, "model", "must be of Module"),
        ({"optimizer": None}, "optimizer", "must be of Optimizer"),
        (
            {"optimizer": torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1)},
            "optimizer.param_groups.0.params.0",
            "one module of all",
        ),
        ({"options": {"link_timeout_seconds": 3.0}}, "options", "must be of OverlayOptions"),
        ({"schedules": schedule()}, "schedules", "a list of schedules"),
        ({"schedules": [schedule()]}, "schedules.0", "of another optimizer"),
        ({"before_step": 0.5}, "before_step", "a function without arguments"),
        ({"before_step": None}, "before_step", "a function without arguments"),
        ({"key": "secret"}, "key", ".encode()"),
        ({"port": -1}, "port", "from 0 to 65535"),
        ({"port": "8000"}, "port", "from 0 to 65535"),
        ({"advertised": "relay"}, "advertised", "must be host:port"),
        ({"advertised": "relay:99999"}, "advertised", "must be host:port"),
        ({"neighbors": "clinic-a"}, "neighbors", "must be a list of names"),
        ({"neighbors": ["a"]}, "neighbors.0", "name others"),
        ({"service": None}, "service", "must be the scheduler's URL"),
        ({"service": []}, "service", "must be the scheduler's URL"),
        ({"service": "scheduler:8000"}, "service", "such as http://127.0.0.1:8000"),
        ({"service": "http://scheduler:99999"}, "service", "such as http://127.0.0.1:8000"),
        ({"service": "http://[scheduler"}, "service", "such as http://127.0.0.1:8000"),
        ({"service": [NOWHERE, 8000]}, "service", "such as http://127.0.0.1:8000"),
        ({"neighbors": [3]}, "neighbors.0", "must be a text"),
    ],
)
def test_a_slip_is_named_with_the_way_out(arguments, field, way_out):
    with pytest.raises(InvalidInputError) as refused:
        joining(**arguments)
    assert refused.value.field == field
    assert way_out in str(refused.value)
