"""After the warm-up, searches of a process read no more machine code."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import gc
import sys
from kintsugi.core.cluster import Cluster
from planner.replan import replan
from planner.warmup import warm_up
from tests.builders import snapshot_of, transformer_profile, uniform_profile

def loaded():
    found = {}
    for name, module in sorted(sys.modules.items()):
        if name.split(".")[0] in ("planner", "estimator"):
            for attribute, value in vars(module).items():
                if hasattr(value, "signatures"):
                    found[f"{value.__module__}.{attribute}"] = len(value.signatures)
    return found

before, num_sought = loaded(), len(gc.get_objects())
warm_up()
warm = loaded()
assert len(gc.get_objects()) < num_sought / 10, "garbage is sought among what stays"
assert sum(warm.values()) > sum(before.values()), "the warm-up loads nothing"
cluster = Cluster.uniform(8)
for profile in (uniform_profile(6), transformer_profile(6)):
    first = replan(snapshot_of(profile, cluster, 16))
    replan(snapshot_of(profile, cluster, 16, plan=first.plan, lost=("w01",)))
print({name: count for name, count in loaded().items() if count > warm.get(name, 0)})
"""


def test_searches_after_it_load_no_more_loops():
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "{}"
