"""`kintsugi export`: a plan in the words of Megatron-LM, TorchTitan or torch.distributed.pipelining."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from kintsugi.cli.files import write_text
from kintsugi.cli.output import Format, json_text
from kintsugi.cli.plan import OutputFormat, ProfileFile, load_profile
from kintsugi.cli.replan import load_plan
from kintsugi.core import codec
from kintsugi.core.errors import InvalidInputError, some
from kintsugi.formats.exports import Export, ExportFormat, ExportPart, exported


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("export", help="A plan in the words of Megatron-LM, TorchTitan or torch.distributed.pipelining.")(export)


def export(
    *,
    to: Annotated[ExportFormat, typer.Argument(metavar="megatron|torchtitan|csv", help="Whose words.")],
    profile: ProfileFile,
    plan: Annotated[Path, typer.Option("--plan", help="The plan, or what `plan` or `replan` printed (JSON).")],
    pipeline: Annotated[int | None, typer.Option("--pipeline", help="The one to tell, needed where pipelines differ.")] = None,
    output: Annotated[Path | None, typer.Option("--output", help="File for what is told; standard output by default.")] = None,
    format: OutputFormat = Format.TABLE,  # noqa: A002  # the option's name
) -> None:
    """A plan in the words of Megatron-LM, TorchTitan or torch.distributed.pipelining."""
    result = exported(load_plan(plan), load_profile(profile), to)
    if pipeline is not None:
        result = replace(result, parts=(_part_of(result, pipeline),))
    if format is Format.JSON:
        text = json_text(codec.encode(result))
    else:
        text = _text(result)
        if result.note:
            typer.echo(f"note: {result.note}", err=True)
    if output is None:
        print(text)
    else:
        write_text(output, text + "\n")


def _part_of(result: Export, pipeline: int) -> ExportPart:
    """What this pipeline is called, with those that are like it.

    Raises:
        InvalidInputError: there is no such pipeline.
    """
    for part in result.parts:
        if pipeline in part.pipelines:
            return part
    known = some([str(index) for index in sorted(index for part in result.parts for index in part.pipelines)])
    raise InvalidInputError(f"is no pipeline of the plan; it has {known}", field="pipeline", value=pipeline)


def _text(result: Export) -> str:
    """The text of one kind of pipelines.

    Raises:
        InvalidInputError: there are several.
    """
    if len(result.parts) == 1:
        return result.parts[0].text.rstrip("\n")
    kinds = "; ".join(", ".join(map(str, part.pipelines)) for part in result.parts)
    message = f"must name one of the pipelines, which differ (equal ones are told together: {kinds})"
    raise InvalidInputError(message, field="pipeline")
