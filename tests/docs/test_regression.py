"""The example workflow of docs/regression.md calls the public command alone."""

import re
from pathlib import Path

TEXT = (Path(__file__).parents[2] / "docs" / "regression.md").read_text()


def test_the_workflow_runs_what_the_document_explains():
    (workflow,) = re.findall(r"^```yaml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    commands = re.findall(r"- run: (.*)", workflow)
    assert commands[0].startswith("pip install ")
    assert commands[1:] == ["kintsugi regress quality"]


def test_the_example_of_a_case_is_one(tmp_path):
    from kintsugi.core import codec
    from planner.quality import Case, decide

    (example,) = re.findall(r"^```json\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    folder = Path(__file__).parents[2] / "benchmarks" / "quality" / "cases"
    decision, illegal = decide(codec.loads(Case, example), folder)
    assert illegal == ()
    assert decision.plan.generation == 2
