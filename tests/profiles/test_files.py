"""The files under profiles/ are what the script writes, decode, and agree with published model sizes."""

import importlib.util
from pathlib import Path

import pytest

from kintsugi.core import codec
from kintsugi.core.cluster import Cluster
from kintsugi.core.profile import Profile, ProvenanceKind

ROOT = Path(__file__).parents[2]
PROFILES = ROOT / "profiles"


def _script():
    spec = importlib.util.spec_from_file_location("make_profiles", ROOT / "scripts" / "make_profiles.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPT = _script()


@pytest.mark.parametrize("name", sorted(SCRIPT.files()))
def test_committed_file_is_what_the_script_writes(name):
    assert (PROFILES / name).read_text() == SCRIPT.files()[name], "run scripts/make_profiles"


def test_script_writes_where_it_is_told(tmp_path):
    SCRIPT.main(tmp_path)
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json")} == set(SCRIPT.files())


@pytest.mark.parametrize("path", sorted(PROFILES.glob("models/*.json")), ids=lambda path: path.stem)
def test_every_model_decodes_and_says_where_it_comes_from(path):
    profile = codec.load(Profile, path)
    assert profile.name == path.stem
    assert profile.provenance.kind in ProvenanceKind
    assert len(profile.provenance.detail) > 40
    assert path.name in (PROFILES / "README.md").read_text()


@pytest.mark.parametrize("path", sorted(PROFILES.glob("clusters/*.json")), ids=lambda path: path.stem)
def test_every_cluster_decodes(path):
    cluster = codec.load(Cluster, path)
    assert cluster.name == path.stem
    assert path.name in (PROFILES / "README.md").read_text()


@pytest.mark.parametrize(
    ("model", "published"),
    [
        (SCRIPT.LLAMA2_7B, 6_738_415_616),
        (SCRIPT.LLAMA3_405B, 405_853_388_800),
        (SCRIPT.GPT2_124M, 124_439_808),
        (SCRIPT.GPT2_MEDIUM, 354_823_168),
    ],
    ids=["llama2-7b", "llama3-405b", "gpt2-124m", "gpt2-medium"],
)
def test_parameters_add_up_to_the_published_number(model, published):
    assert model.num_parameters == published


@pytest.mark.parametrize("profile", SCRIPT.profiles(), ids=lambda profile: profile.name)
def test_reduced_gradients_are_those_of_every_parameter_once(profile):
    models = {"llama2-7b": 6_738_415_616, "llama3-405b": 405_853_388_800, "gpt2-124m": 124_439_808, "gpt2-medium": 354_823_168}
    reduced = sum(layer.gradient_bytes for layer in profile.layers) * profile.tensor_parallel_degree
    assert reduced == 2 * models[profile.name.split(".")[0]]


@pytest.mark.parametrize("profile", SCRIPT.profiles(), ids=lambda profile: profile.name)
def test_step_agrees_with_the_published_throughput(profile):
    """Tokens per second and device of the published benchmark, corrected for its own model size, within 20 %.

    Of Llama 3.1 405B: 400 TFLOP/s per device over 6 FLOPs per parameter and 12 * blocks * hidden * sequence per token.
    """
    measured = {
        "llama2-7b.a100-80g": 4641,
        "llama2-7b.a100-80g-tp8": 4641,
        "llama2-7b.h100-80g": 10643,
        "llama3-405b.h100-80g-tp8": 152,
        "gpt2-124m.a100-80g": 156468,
        "gpt2-medium.a100-80g": 64813,
    }
    sequence = {"llama2-7b": 4096, "llama3-405b": 8192}.get(profile.name.split(".")[0], 1024)
    seconds = sum(layer.forward_seconds + layer.backward_seconds for layer in profile.layers)
    tokens_per_second = profile.microbatch_size * sequence / seconds / profile.tensor_parallel_degree
    assert tokens_per_second == pytest.approx(measured[profile.name], rel=0.2)
