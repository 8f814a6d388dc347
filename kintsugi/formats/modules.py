"""What a profile's layers are in a decoder-only language model, which is what other systems' formats describe.

Profiles name their layers freely. The first layer is the embedding where its name says so, the last ones are the head where
theirs do, and everything between is a decoder block, or multi-token prediction where its name begins with `mtp`.
"""

import re
from enum import StrEnum

from kintsugi.core.profile import Profile

_EMBEDDING = re.compile(r"(?:.*[._-])?(?:wte|(?:tok|token|word)?_?emb(?:ed|eddings?)?(?:_tokens)?)", re.IGNORECASE)
_HEAD = re.compile(r"(?:.*[._-])?(?:final_?)?(?:norm|ln_f|head|lm_head|output|logits|loss)", re.IGNORECASE)
_PREDICTION = re.compile(r"mtp.*", re.IGNORECASE)


class ModuleKind(StrEnum):
    """What a layer is."""

    EMBEDDING = "embedding"
    DECODER = "decoder"
    PREDICTION = "mtp"
    """Multi-token prediction."""
    HEAD = "head"
    """Last norm, output projection, loss: one of these, or all."""


def module_kinds(profile: Profile) -> tuple[ModuleKind, ...]:
    """The kind of every layer. Shape [layers]."""
    names = [layer.name for layer in profile.layers]
    begin = 1 if _EMBEDDING.fullmatch(names[0]) else 0
    end = len(names)
    while end > begin + 1 and _HEAD.fullmatch(names[end - 1]):
        end -= 1
    between = [ModuleKind.PREDICTION if _PREDICTION.fullmatch(name) else ModuleKind.DECODER for name in names[begin:end]]
    return (*[ModuleKind.EMBEDDING] * begin, *between, *[ModuleKind.HEAD] * (len(names) - end))
