"""`kintsugi regress`: did plans become better or worse than a committed baseline says?"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from kintsugi.cli.deciding import native_lines_apart
from kintsugi.cli.files import write_text
from kintsugi.cli.output import Format, print_json
from kintsugi.cli.progress import tracked
from kintsugi.cli.terminal import terminal
from kintsugi.core import codec
from kintsugi.core.errors import InfeasibleError, InvalidInputError, NotFoundError
from kintsugi.core.patterns import is_asked
from kintsugi.runtime.disk import require_folder
from planner.quality import Baseline, Case, Figures, Verdict, compare, decide

BASELINE, CASES = "baseline.json", "cases"
ANEW = "--update makes it from the present figures of all cases"
WIDTH_OF_FILES = 132
"""Columns where the output is no terminal."""


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("regress", help="Compare the quality of plans with a committed baseline.")(regress)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One case beside its baseline."""

    name: str
    before: Figures | None
    """Null for a case that the baseline does not know."""
    after: Figures | None
    """Null where there is no case or no plan any more."""
    illegal: tuple[str, ...] = ()
    """What is wrong with the plan, or why there is none."""
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)

    @property
    def is_loss(self) -> bool:
        """Whether this case fails the run."""
        return bool(self.illegal) or Verdict.WORSE in self.verdicts.values()

    @property
    def summary(self) -> str:
        """The verdict on the whole case, in a word."""
        if self.illegal:
            return "illegal"
        if self.before is None:
            return "new"
        order = (Verdict.WORSE, Verdict.TRADED, Verdict.BETTER)
        return next((verdict.value for verdict in order if verdict in self.verdicts.values()), Verdict.SAME.value)


def regress(
    folder: Annotated[Path, typer.Argument(help=f"Holds {CASES}/*.json and {BASELINE}.")],
    *,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="PATTERN", help="Cases by name, as 'loss-*'; may be repeated.")
    ] = None,
    update: Annotated[bool, typer.Option("--update", help="Make the present figures the baseline.")] = False,
    format: Annotated[Format, typer.Option("--format", help="A table for people or one JSON document.")] = Format.TABLE,  # noqa: A002
) -> int:
    """Plan every case of FOLDER, check the plans' legality, and compare their figures with the baseline.

    Exits with 1 when a figure is worse by more than 0.1 % without a better goodput to show for it, or when a plan is
    illegal or missing.
    """
    patterns = tuple(only or ())
    cases = _cases(folder, patterns)
    before = _baseline(folder, is_needed=not update or bool(patterns)).cases
    left_out = {name: figures for name, figures in before.items() if not is_asked(name, patterns)}
    planned = tracked(cases.items(), len(cases), "planning")
    with native_lines_apart():
        results = [_result(name, case, before.get(name), folder / CASES) for name, case in planned]
    results += [_gone(name, figures, update) for name, figures in before.items() if name not in cases and name not in left_out]
    _print(results, format)
    if not update:
        return int(any(result.is_loss for result in results))
    if any(result.illegal for result in results):
        return 1
    _write(folder, left_out | {result.name: result.after for result in results if result.after is not None})
    return 0


def _cases(folder: Path, patterns: Sequence[str]) -> dict[str, Case]:
    """The cases that are asked for, by name.

    Raises:
        InvalidInputError: there are none, or no such folder, or one cannot be read.
    """
    require_folder(folder, "folder")
    paths = sorted((folder / CASES).glob("*.json"))
    if not paths:
        raise InvalidInputError(f"has no {CASES}/*.json", field="folder", value=str(folder))
    asked = [path for path in paths if is_asked(path.stem, patterns)]
    if not asked:
        raise InvalidInputError(f"names no case; one is {paths[0].stem}", field="only", value=list(patterns))
    return {path.stem: _named(path) for path in asked}


def _named(path: Path) -> Case:
    with _errors_name(path.stem):
        return codec.load(Case, path)


@contextmanager
def _errors_name(case: str) -> Iterator[None]:
    """Has errors in what a case says name it."""
    try:
        yield
    except (InvalidInputError, NotFoundError) as error:
        error.field = f"{case}: {error.field}"
        raise


def _baseline(folder: Path, *, is_needed: bool) -> Baseline:
    """What was committed; none where it is not needed and is not there, or is broken."""
    path = folder / BASELINE
    if not path.exists():
        if is_needed:
            raise InvalidInputError(f"is not there; {ANEW}", field="baseline", value=str(path))
        return Baseline(cases={})
    try:
        return codec.load(Baseline, path)
    except InvalidInputError as error:
        if is_needed:
            raise InvalidInputError(f"{error.message}; {ANEW}", field=error.field, value=error.value) from error
        typer.echo(f"note: nothing is compared, for the baseline is broken: {error}", err=True)
        return Baseline(cases={})


def _result(name: str, case: Case, before: Figures | None, folder: Path) -> Result:
    try:
        with _errors_name(name):
            decision, illegal = decide(case, folder)
    except InfeasibleError as error:
        return Result(name=name, before=before, after=None, illegal=(f"no plan: {error}",))
    after = Figures.of(decision)
    verdicts = {} if before is None else compare(before, after)
    return Result(name=name, before=before, after=after, illegal=illegal, verdicts=verdicts)


def _gone(name: str, before: Figures, update: bool) -> Result:
    """A case that only the baseline knows: a loss, unless the baseline is being renewed."""
    return Result(name=name, before=before, after=None, illegal=() if update else ("the case is gone",))


def _write(folder: Path, figures: Mapping[str, Figures]) -> None:
    path = folder / BASELINE
    text = json.dumps(codec.encode(Baseline(cases=dict(sorted(figures.items())))), indent=1) + "\n"
    write_text(path, text, "baseline")


def _print(results: Sequence[Result], format: Format) -> None:  # noqa: A002
    if format is Format.JSON:
        print_json(_document(results))
        return
    console = terminal(width_of_files=WIDTH_OF_FILES)
    changed = [result for result in results if result.summary != Verdict.SAME.value]
    if changed:
        console.print(_table(changed))
    console.print(_summary(results))


def _document(results: Sequence[Result]) -> dict[str, Any]:
    cases = [{"verdict": result.summary, "is_loss": result.is_loss, **codec.encode(result)} for result in results]
    return {"passed": not any(result.is_loss for result in results), "cases": cases}


def _table(results: Sequence[Result]) -> Table:
    """One row for every figure that changed, and one for every plan that is illegal or new."""
    table = Table(title="against the baseline", title_justify="left")
    for name in ("case", "figure", "baseline", "now", "change", ""):
        table.add_column(name, justify="right" if name in ("baseline", "now", "change") else "left")
    for result in results:
        for message in result.illegal:
            table.add_row(result.name, message, "", "", "", "illegal")
        for name, verdict in result.verdicts.items():
            if verdict is not Verdict.SAME and result.before is not None and result.after is not None:
                one, other = getattr(result.before, name), getattr(result.after, name)
                table.add_row(result.name, name, f"{one:.6g}", f"{other:.6g}", _change(one, other), verdict.value)
        if result.before is None and not result.illegal:
            table.add_row(result.name, "", "", "", "", "new")
    return table


def _change(before: float, after: float) -> str:
    return f"{after / before - 1:+.2%}" if before else f"{after:+.3g}"


def _summary(results: Sequence[Result]) -> str:
    told = [result.summary for result in results]
    counts = [f"{told.count(word)} {word}" for word in ("illegal", "worse", "traded", "better", "new", "same") if word in told]
    return f"{len(results)} cases: {', '.join(counts)}"
