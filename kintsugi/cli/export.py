"""`kintsugi export`: a plan in the words of Megatron-LM, TorchTitan or torch.distributed.pipelining."""

from pathlib import Path
from typing import Annotated

import typer

from kintsugi.cli.output import Format, print_json, write_text
from kintsugi.cli.plan import OutputFormat, ProfileFile, load_profile
from kintsugi.cli.replan import load_plan
from kintsugi.core import codec
from kintsugi.core.errors import InvalidInputError
from kintsugi.formats.exports import Export, ExportFormat, exported


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("export", help="A plan in the words of Megatron-LM, TorchTitan or torch.distributed.pipelining.")(export)


def export(
    *,
    to: Annotated[ExportFormat, typer.Argument(metavar="megatron|torchtitan|csv", help="Whose words.")],
    profile: ProfileFile,
    plan: Annotated[Path, typer.Option("--plan", help="The plan, or what `plan` or `replan` printed (JSON).")],
    pipeline: Annotated[int | None, typer.Option("--pipeline", help="The one to tell, where pipelines differ.")] = None,
    output: Annotated[Path | None, typer.Option("--output", help="File for the text; standard output by default.")] = None,
    format: OutputFormat = Format.TABLE,  # noqa: A002  # the option's name
) -> None:
    """A plan in the words of Megatron-LM, TorchTitan or torch.distributed.pipelining."""
    result = exported(load_plan(plan), load_profile(profile), to)
    if format is Format.JSON:
        print_json(codec.encode(result))
        return
    text = _text(result, pipeline)
    if result.note:
        typer.echo(f"note: {result.note}", err=True)
    if output is None:
        print(text)
    else:
        write_text(output, text + "\n")


def _text(result: Export, pipeline: int | None) -> str:
    """The text of one kind of pipelines.

    Raises:
        InvalidInputError: there are several and none is named, or no such pipeline.
    """
    if pipeline is None and len(result.parts) == 1:
        return result.parts[0].text.rstrip("\n")
    for part in result.parts:
        if pipeline in part.pipelines:
            return part.text.rstrip("\n")
    kinds = "; ".join(", ".join(map(str, part.pipelines)) for part in result.parts)
    raise InvalidInputError(
        f"must name one of the pipelines, which differ (equal ones are told together: {kinds})", field="pipeline", value=pipeline
    )
