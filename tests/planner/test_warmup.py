"""After the warm-up, searches of a process read no more machine code, and compile none."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
from dataclasses import replace
from types import CodeType, FunctionType
from numba.core.dispatcher import Dispatcher
from kintsugi.core.cluster import Cluster
from kintsugi.core.plan import Schedule
from planner.replan import replan
from planner.warmup import warm_up
from tests.builders import snapshot_of, transformer_profile, uniform_profile

def modules():
    return [module for name, module in sorted(sys.modules.items()) if name.split(".")[0] in ("planner", "estimator", "restorer")]

def loops():
    return {loop for module in modules() for loop in vars(module).values() if isinstance(loop, Dispatcher)}

def loaded():
    return {f"{loop.__module__}.{loop.__name__}": len(loop.signatures) for loop in loops()}

def names_in(code):
    inner = (part for part in code.co_consts if isinstance(part, CodeType))
    return set(code.co_names).union(*map(names_in, inner))

def called(module):
    parts = [part for part in vars(module).values() if getattr(part, "__module__", "") == module.__name__]
    parts += [getattr(part, "__func__", part) for own in parts if isinstance(own, type) for part in vars(own).values()]
    used = set().union(*(names_in(part.__code__) for part in parts if isinstance(part, FunctionType)))
    return {vars(module)[name] for name in used if isinstance(vars(module).get(name), Dispatcher)}

before = loaded()
warm_up()
warm = loaded()
assert sum(warm.values()) > sum(before.values()), "the warm-up loads nothing"
entries = set().union(*map(called, modules()))
assert len(entries) > 20, entries
print({loop.__name__ for loop in entries if not loop.signatures} or "all called")

def live(snapshot, num_losses):
    plan = replan(snapshot).plan
    for number in range(1, num_losses + 1):
        plan = replan(replace(snapshot, plan=plan, alive=snapshot.alive[number:], generation=number)).plan

def with_a_slow_worker(cluster):
    return cluster.with_workers((replace(cluster.workers[0], speed_ratio=0.5), *cluster.workers[1:]))

for cluster in (Cluster.uniform(8), with_a_slow_worker(Cluster.uniform(8, workers_per_host=4))):
    for profile in (uniform_profile(6), transformer_profile(6), uniform_profile(16)):
        for schedule in Schedule:
            first = snapshot_of(profile, cluster, 16)
            live(replace(first, settings=replace(first.settings, schedule=schedule)), num_losses=2)
live(snapshot_of(uniform_profile(16), with_a_slow_worker(Cluster.uniform(16)), 32), num_losses=1)
print({name: count for name, count in loaded().items() if count > warm.get(name, 0)})
"""


def test_searches_after_it_load_no_more_loops():
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["all called", "{}"]
