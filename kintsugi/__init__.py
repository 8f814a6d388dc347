"""Kintsugi mends broken hybrid data-parallel/pipeline-parallel training jobs without restarting the survivors."""

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kintsugi.core.version import __version__ as __version__

if TYPE_CHECKING:
    from kintsugi.client import Client as Client
    from kintsugi.core.cluster import Cluster as Cluster
    from kintsugi.core.errors import KintsugiError as KintsugiError
    from kintsugi.runtime.checkpoints.recording import CheckpointOptions as CheckpointOptions
    from kintsugi.runtime.faults import fail_at as fail_at
    from kintsugi.runtime.layer import Layer as Layer
    from kintsugi.runtime.models import TrainingJob as TrainingJob
    from kintsugi.runtime.overlay.committed import GivenUpError as GivenUpError
    from kintsugi.runtime.overlay.comparing import DisagreementError as DisagreementError
    from kintsugi.runtime.overlay.comparing import WrongStateError as WrongStateError
    from kintsugi.runtime.overlay.coordinator import Coordinator as Coordinator
    from kintsugi.runtime.overlay.exits import capture_exit_event as capture_exit_event
    from kintsugi.runtime.overlay.options import OverlayOptions as OverlayOptions
    from kintsugi.runtime.train import train as train

_EXPORTS = {
    "CheckpointOptions": "kintsugi.runtime.checkpoints.recording",
    "Client": "kintsugi.client",
    "Cluster": "kintsugi.core.cluster",
    "Coordinator": "kintsugi.runtime.overlay.coordinator",
    "DisagreementError": "kintsugi.runtime.overlay.comparing",
    "GivenUpError": "kintsugi.runtime.overlay.committed",
    "KintsugiError": "kintsugi.core.errors",
    "Layer": "kintsugi.runtime.layer",
    "OverlayOptions": "kintsugi.runtime.overlay.options",
    "TrainingJob": "kintsugi.runtime.models",
    "WrongStateError": "kintsugi.runtime.overlay.comparing",
    "capture_exit_event": "kintsugi.runtime.overlay.exits",
    "fail_at": "kintsugi.runtime.faults",
    "train": "kintsugi.runtime.train",
}
"""What a trainer needs, and what it may have to catch, by the module that defines it; loaded when it is first asked for."""

_COMPANIONS = ("api", "estimator", "planner", "restorer")


def _refuse_shadowed_packages() -> None:
    """Fail early and clearly where a folder of the user hides one of Kintsugi's top-level packages."""
    root = Path(__file__).resolve().parent.parent
    for name in _COMPANIONS:
        spec = importlib.util.find_spec(name)
        origin = spec.origin if spec is not None else None
        if origin is not None and Path(origin).resolve().parent == root / name:
            continue
        places = list(spec.submodule_search_locations or ()) if spec is not None else []
        found = origin or (places[0] if places else "nothing")
        raise ImportError(
            f"kintsugi needs its own top-level package {name!r} at {root / name}, but Python finds {found}. "
            f"Rename that file or folder, or start Python from another working directory "
            f"(python -P keeps the working directory out of the search path)."
        )


_refuse_shadowed_packages()


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'kintsugi' has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)
