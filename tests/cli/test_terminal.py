"""What commands print for people shows names from outside as they are, but for what would steer a terminal."""

from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from rich.table import Table

import kintsugi.cli
from kintsugi.cli import main
from kintsugi.cli.audit import _print
from kintsugi.cli.logs import log_to_stderr
from kintsugi.cli.terminal import styled, terminal
from kintsugi.core import codec
from kintsugi.core.cluster import Cluster, Worker
from kintsugi.core.plan import IdleWorker
from kintsugi.runtime.records.audit import AuditReport
from tests.builders import grid_plan, transformer_profile

NAMES = ("[red]w[/blue]", "rack1[gpu]5", "a:smile:b", "[/]")


def print_everywhere(name):
    """Six times: by itself, as title, head and cell of a table, and with a style and without."""
    table = Table(title=name)
    table.add_column(name)
    table.add_row(name)
    console = terminal()
    console.print(name)
    console.print(table)
    console.print(styled("red", name, name))


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_shown_as_it_is(name, capsys):
    print_everywhere(name)
    assert capsys.readouterr().out.count(name) == 6


def test_what_would_steer_a_terminal_is_escaped(capsys):
    print_everywhere("w\x1b]0;title\x07")
    printed = capsys.readouterr().out
    assert printed.count(r"w\x1b]0;title\x07") == 6
    assert "\x1b" not in printed


def test_a_log_on_standard_error_does_not_steer_it(capsys):
    log_to_stderr()
    structlog.get_logger("kintsugi.runtime").warning("w\x1b[2J failed", reason="its\x1b[31mtext")
    told = capsys.readouterr().err
    assert r"w\x1b[2J failed" in told
    assert r"its\x1b[31mtext" in told


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_names_its_workers(name, capsys, tmp_path):
    profile, cluster = tmp_path / "profile.json", tmp_path / "cluster.json"
    profile.write_text(codec.dumps(transformer_profile(6)))
    workers = (Worker(id=name, host="h0"), Worker(id=f"{name}2", host="h1"), Worker(id=f"{name}3", host="h2"))
    cluster.write_text(codec.dumps(Cluster(name="brackets", workers=workers)))
    arguments = ("--profile", str(profile), "--cluster", str(cluster), "--num-microbatches", "8", "--max-dp", "1", "--max-pp", "2")
    with pytest.raises(SystemExit) as left:
        main(["plan", *arguments])
    assert left.value.code == 0
    out = capsys.readouterr().out
    assert f"{name} 0-" in out
    assert f"{name}3 is idle" in out


def test_what_utf_8_has_no_bytes_for_is_escaped(capfd, tmp_path):
    profile, plan = tmp_path / "profile.json", tmp_path / "plan.json"
    profile.write_text(codec.dumps(transformer_profile(6)))
    idle = (IdleWorker(worker="w02", reason="spare \ud83d"),)
    plan.write_text(codec.dumps(replace(grid_plan(8, [2], [8]), idle_workers=idle)))
    with pytest.raises(SystemExit) as left:
        main(["replan", "--profile", str(profile), "--plan", str(plan), "--num-microbatches", "8"])
    assert left.value.code == 0
    assert r"w02 is idle: spare \ud83d" in capfd.readouterr().out


def test_an_audit_tells_its_problems(capsys):
    empty = AuditReport(num_steps=1, committed_steps=0, num_journals=1, epochs=(), problems=(), num_problems=0, undone=())
    _print(replace(empty, problems=("journal [red]w[/blue]",), num_problems=1), False)
    assert "journal [red]w[/blue]" in capsys.readouterr().out


def test_every_command_prints_that_way():
    folder = Path(kintsugi.cli.__file__).parent
    others = [path.name for path in folder.glob("*.py") if path.name != "terminal.py" and "Console(" in path.read_text()]
    assert others == []
