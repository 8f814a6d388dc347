"""An agent hands on what the scheduler says: all of it in order, whichever thread heard it."""

import threading
from dataclasses import replace
from types import SimpleNamespace

from kintsugi.runtime.overlay.agent import Agent
from kintsugi.runtime.overlay.greeting import Identity
from kintsugi.runtime.overlay.inbox import Inbox
from kintsugi.runtime.overlay.options import OverlayOptions
from planner.overlay.topology import empty_overlay


def test_nobody_hears_of_an_older_overlay_after_a_newer_one_is_known():
    overlay = empty_overlay("job")
    links = SimpleNamespace(generation=0)
    scheduler = SimpleNamespace(close=lambda: None)
    agent = Agent(Identity(job="job", worker="a"), links, Inbox(lambda *_: None), scheduler, overlay, options=OverlayOptions())
    heard, is_asked, may_go_on = [], threading.Event(), threading.Event()

    def hear(told):
        if told.generation == 1:
            is_asked.set()
            may_go_on.wait(120.0)
        heard.append((told.generation, agent.overlay.generation))

    agent.on_overlay(hear)
    threads = [threading.Thread(target=agent.take, args=(replace(overlay, generation=number),)) for number in (1, 2)]
    try:
        threads[0].start()
        assert is_asked.wait(120.0)
        threads[1].start()
        threads[1].join(0.1)  # as long as the first one is told, this one is not known
        assert agent.overlay.generation == 1
    finally:
        may_go_on.set()
        for thread in threads:
            thread.join(120.0)
        agent.close()
    agent.take(overlay)
    assert heard == [(1, 1), (2, 2)]
