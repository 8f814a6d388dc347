"""A decision as it is stored and told: its JSON in two compressed parts, so that telling it is a splice of texts."""

import json
import zlib
from dataclasses import dataclass, fields
from enum import StrEnum

from api.storage.legible import legible
from kintsugi.core import codec
from kintsugi.core.decision import Decision
from kintsugi.core.identity import kept_by_identity
from kintsugi.core.plan import Plan

ACCOUNT = ("alternatives", "previous_plan")
"""Fields that say why a decision was made and that nobody needs in order to carry it out."""
PREVIOUS_PLANS = 16
"""Texts of plans that are kept: all decisions that are made ahead of one plan tell of it."""
NO_ACCOUNT = '{"alternatives":[],"previous_plan":null}'


class Detail(StrEnum):
    """How much of a decision is told."""

    FULL = "full"
    """Everything."""
    BRIEF = "brief"
    """All that a trainer acts on: no alternatives and no previous plan, which are most of the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """A decision's JSON, cut in two."""

    brief: bytes
    """Every field but those of `account`, compressed."""
    account: bytes
    """The fields of `ACCOUNT`, compressed."""

    @classmethod
    def of(cls, decision: Decision) -> "Wording":
        """The wording of a decision."""
        brief = {field.name: getattr(decision, field.name) for field in fields(decision) if field.name not in ACCOUNT}
        account = f'{{"alternatives":{codec.dumps(decision.alternatives)},"previous_plan":{_plan_text(decision.previous_plan)}}}'
        return cls(brief=_packed(codec.dumps(brief)), account=_packed(account))

    @legible
    def text(self, detail: Detail = Detail.FULL) -> str:
        """The decision as one JSON object."""
        account = NO_ACCOUNT if detail is Detail.BRIEF else _unpacked(self.account)
        return f"{account[:-1]},{_unpacked(self.brief)[1:]}"

    @legible
    def decision(self) -> Decision:
        """The decision itself."""
        return codec.loads(Decision, self.text())

    @legible
    def plan(self) -> Plan:
        """The decision's plan."""
        return codec.decode(Plan, json.loads(_unpacked(self.brief))["plan"])


@kept_by_identity(PREVIOUS_PLANS)
def _plan_text(plan: Plan | None) -> str:
    return codec.dumps(plan)


def _packed(text: str) -> bytes:
    return zlib.compress(text.encode(), level=1)


def _unpacked(packed: bytes) -> str:
    return zlib.decompress(packed).decode()
