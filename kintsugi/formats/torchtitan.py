"""TorchTitan's `module_fqns_per_model_part`: the modules of every (virtual) pipeline stage, by their names in its models.

`tok_embeddings`, `layers.N`, `norm` and `output`, as `torchtitan/distributed/pipeline_parallel.py` makes them up itself where
the option is not given. Stage s is on pipeline rank s mod P, the `loop` style.
"""

from kintsugi.core.errors import InvalidInputError
from kintsugi.core.plan import Pipeline, Plan
from kintsugi.core.profile import Profile
from kintsugi.formats.modules import ModuleKind, module_kinds
from kintsugi.formats.parts import require_whole

FIRST = ("tok_embeddings",)
LAST = ("norm", "output")


def module_fqns(plan: Plan, pipeline: Pipeline, profile: Profile) -> list[list[str]]:
    """The modules of one pipeline's stages. Shape [stages][modules].

    Raises:
        InvalidInputError: TorchTitan cannot run the pipeline; the message says why.
    """
    require_whole(plan, "TorchTitan")
    kinds = module_kinds(profile)
    if ModuleKind.PREDICTION in kinds:
        name = profile.layers[kinds.index(ModuleKind.PREDICTION)].name
        raise InvalidInputError("is multi-token prediction, which TorchTitan's models do not have", field="layers", value=name)
    first_head = kinds.index(ModuleKind.HEAD) if ModuleKind.HEAD in kinds else len(kinds)
    if pipeline.stages[-1].layer_start > first_head:
        raise InvalidInputError("parts the norm from the output, which TorchTitan keeps together", field="stages", value=first_head)
    shift = kinds.count(ModuleKind.EMBEDDING)
    parts = [
        [f"layers.{layer - shift}" for layer in stage.layers if kinds[layer] is ModuleKind.DECODER] for stage in pipeline.stages
    ]
    parts[0] = [*FIRST, *parts[0]]
    parts[-1] = [*parts[-1], *LAST]
    return parts
