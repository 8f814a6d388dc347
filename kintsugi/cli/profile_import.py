"""`kintsugi profile import`: the layer profile of another system as one of Kintsugi's."""

import json
from pathlib import Path
from typing import Annotated

import typer

from kintsugi.cli.files import write_text
from kintsugi.core import codec
from kintsugi.core.errors import InvalidInputError
from kintsugi.core.profile import Profile
from kintsugi.formats.layer_csv import LayerCsvOptions, profile_from


def import_profile(
    file: Annotated[Path, typer.Argument(help="layer_index,layer_name,forward,backward,mem_required; milliseconds and bytes.")],
    *,
    like: Annotated[Path, typer.Option("--like", help="Profile that says all but the layers (JSON).")],
    activation_ratio: Annotated[float, typer.Option("--activation-ratio", help="Share of mem_required kept per micro-batch.")],
    output_bytes: Annotated[int, typer.Option("--output-bytes", help="What a layer sends to the next, per micro-batch.")],
    microbatch_size: Annotated[int, typer.Option("--microbatch-size", help="Samples of a micro-batch.")] = 1,
    name: Annotated[str | None, typer.Option("--name", help="Name of the profile; the file's by default.")] = None,
    output: Annotated[Path | None, typer.Option("--output", help="Write to this file instead of the standard output.")] = None,
) -> None:
    """Turn a layer profile as Oobleck writes it into one of Kintsugi's."""
    options = LayerCsvOptions(activation_ratio=activation_ratio, output_bytes=output_bytes, microbatch_size=microbatch_size)
    try:
        text = file.read_text(encoding="utf-8-sig")  # Excel begins with a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"cannot be read: {error}", field="file", value=str(file)) from error
    found = profile_from(text, name=name or file.stem, like=codec.load(Profile, like, named="--like"), options=options)
    result = json.dumps(codec.encode(found), indent=2, allow_nan=False)
    if output is None:
        print(result)
    else:
        write_text(output, result + "\n")
