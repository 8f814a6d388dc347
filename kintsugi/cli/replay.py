"""`kintsugi replay`: make the decisions of jobs again from what the service stored, and compare."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table
from rich.text import Text

from api.differences import Difference
from api.replay import Replay, Replayed, lacking
from api.settings import settings_of
from api.storage.store import Store
from kintsugi.cli.output import Format, print_json, to_the_second
from kintsugi.cli.terminal import styled, terminal
from kintsugi.core.codec import encode
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.version import __version__

PAGE = 1_000
MOST_SHOWN = 20
"""Differences of one entry, or of all logs, that the table shows."""


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("replay", help="Make the decisions of jobs again from a service's database, and compare.")(replay)


def replay(
    database_url: Annotated[
        str | None,
        typer.Option(help="SQLAlchemy URL of the service's database, which is only read; KINTSUGI_DATABASE_URL by default."),
    ] = None,
    job: Annotated[str | None, typer.Option(help="Id of the one job to replay; all by default.")] = None,
    generation: Annotated[
        int | None, typer.Option(min=0, help="The one decision of the job to make again; all by default.")
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.TABLE,
) -> int:
    """Replay the logs of jobs; exit 1 where anything comes out differently."""
    if generation is not None and job is None:
        raise InvalidInputError("says which decision of a job; name it by --job", field="generation", value=generation)
    store = Store(database_url or settings_of().database_url, read_only=True)
    try:
        store.open()
        replays = [Replay(store, name, generation=generation) for name in ([job] if job is not None else _jobs(store))]
        outcomes = {one.job: list(_tracked(one)) for one in replays}
        lacks = lacking(store) if job is None else ()
    finally:
        store.close()
    if form is Format.JSON:
        print_json(_document(outcomes, lacks))
    else:
        _print(outcomes, lacks)
    return int(bool(lacks) or any(entry.differences for entries in outcomes.values() for entry in entries))


def _jobs(store: Store) -> Iterator[str]:
    after = ""
    while page := store.job_ids(after=after, limit=PAGE):
        yield from page
        after = page[-1]


def _tracked(one: Replay) -> Iterable[Replayed]:
    """A job's entries, with their progress on a terminal's standard error."""
    console = terminal(stderr=True)
    return track(one, escape(one.job), total=one.num_entries + 1, console=console, transient=True, disable=not console.is_terminal)


def _document(outcomes: dict[str, list[Replayed]], lacks: Sequence[Difference]) -> dict[str, Any]:
    jobs = [
        {
            "job": job,
            "is_same": not any(entry.differences for entry in entries),
            "num_decisions": sum(entry.policy is not None for entry in entries),
            "entries": [{**encode(entry), "is_same": not entry.differences} for entry in entries],
        }
        for job, entries in outcomes.items()
    ]
    is_same = not lacks and all(job["is_same"] for job in jobs)
    return {"planner_version": __version__, "is_same": is_same, "differences": encode(lacks), "jobs": jobs}


def _print(outcomes: dict[str, list[Replayed]], lacks: Sequence[Difference]) -> None:
    console = terminal()
    for job, entries in outcomes.items():
        console.print(_table(job, entries))
        for entry in entries:
            _print_differences(console, f"entry {entry.number}", entry.differences)
    _print_differences(console, "all logs", lacks)
    decisions = [entry for entries in outcomes.values() for entry in entries if entry.policy is not None]
    others = sorted({str(entry.planner_version) for entry in decisions} - {__version__})
    made = f"; some were made by {', '.join(others)}" if others else ""
    num_different = sum(bool(entry.differences) for entries in outcomes.values() for entry in entries)
    found = [f"{num_different} {'entry' if num_different == 1 else 'entries'} came out differently"] if num_different else []
    found += ["others are missing"] if lacks else []
    verdict = styled("red", " and ".join(found)) if found else styled("green", "all the same")
    console.print(Text(f"{len(decisions)} decisions made again by planner {__version__}{made}: ").append_text(verdict))


def _table(job: str, entries: list[Replayed]) -> Table:
    table = Table(title=f"job {job}", title_justify="left")
    for name in ("entry", "time", "what, and policy", "generation", "planner", "replayed"):
        table.add_column(name, no_wrap=not name.startswith("what"), overflow="fold")  # rather than cut off, on narrow screens
    for entry in entries:
        generation, planner = (str(entry.generation), entry.planner_version or "") if entry.decided else ("", "")
        what = "\n".join(filter(None, (entry.what, entry.policy if entry.decided else None)))
        at = to_the_second(entry.at).replace(" ", "\n")  # one below the other: with them the table has room in 80 columns
        verdict = styled("red", "different") if entry.differences else "same"
        table.add_row(str(entry.number), at, what, generation, planner, verdict)
    return table


def _print_differences(console: Console, where: str, found: Sequence[Difference]) -> None:
    for difference in found[:MOST_SHOWN]:
        console.print(styled("red", f"{where}: {_told(difference)}"))
    if len(found) > MOST_SHOWN:
        console.print(f"{where}: and {len(found) - MOST_SHOWN} more fields")


def _told(difference: Difference) -> str:
    return f"{difference.field} is stored as {difference.stored!r}, replayed as {difference.replayed!r}"
