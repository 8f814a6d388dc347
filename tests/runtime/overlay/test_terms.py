"""What a scheduler said to a few before it died, and what the next one says: neither is taken for the other."""

from kintsugi.runtime.overlay.inbox import Inbox, Pass, Phase
from kintsugi.runtime.overlay.messages import Channel, Message
from kintsugi.runtime.overlay.reduction import Header, merged
from tests.planner.overlay.world import World, mesh


def test_an_attempt_that_few_heard_of_is_no_attempt_of_the_next_scheduler():
    """One worker heard of a restart before the scheduler died; who goes on in its place did not."""
    world = mesh("w00", "w01", "w02")
    known = world.overlay
    unheard = world.tell("worker_failed", worker="w02", interrupted=True, restarts=0)
    behind = World(overlay=known, log=[])
    overlay = behind.tell("scheduler_changed", worker="w00", term=2, address="http://w00:1", overlay=known)
    inbox = Inbox(lambda *_: None)
    for one in (unheard, overlay):
        inbox.restart(one.restarts)
    inbox.put("w01", Message(Channel.REDUCTION, "x", {"pass": [overlay.restarts, 0, 0]}))
    assert inbox.take(Pass(overlay.restarts, Phase.SETTLE, 0), 10.0)[0] == "w01"


def test_nobody_goes_over_to_what_a_scheduler_said_that_others_do_not_hear():
    old, new = {"term": 1, "generation": 9}, {"term": 2, "generation": 9}
    assert merged([Header(ready=new), Header(ready=new)]).ready == new
    assert merged([Header(ready=old), Header(ready=new)]).ready is None
