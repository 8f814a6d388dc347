"""An interpreter that has torchft beside this project's torch, in a virtual environment of its own."""

import subprocess
import sysconfig
import venv
from pathlib import Path

from kintsugi.core.errors import UnavailableError

PACKAGES = ("torchft-nightly", "opentelemetry-sdk>=1.39,<2", "opentelemetry-exporter-otlp-proto-http>=1.39,<2")
"""Installed apart from torch, which is this project's own."""
INSTALL_SECONDS = 300.0


def torchft_python(folder: Path) -> Path:
    """Make the environment in `folder`, unless it is there; its interpreter.

    Raises:
        UnavailableError: it could not be installed, or does not import here; says what pip or Python said.
    """
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        packages = Path(_output([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip())
        (packages / "project.pth").write_text(sysconfig.get_path("purelib") + "\n")
        _output([python, "-m", "pip", "install", "--quiet", "--no-deps", PACKAGES[0]])
        _output([python, "-m", "pip", "install", "--quiet", *PACKAGES[1:]])
    return python


def torchft_version(python: Path) -> str:
    """Of torchft and of the torch that it runs on."""
    asked = "import torch, torchft, importlib.metadata as m; print(m.version('torchft-nightly'), 'on torch', torch.__version__)"
    return f"torchft-nightly {_output([python, '-c', asked]).strip()}"


def _output(command: "list[Path | str]") -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    if done.returncode != 0:
        raise UnavailableError(f"{' '.join(map(str, command))} failed:\n{(done.stderr or done.stdout)[-2000:]}", field="torchft")
    return done.stdout
