"""The Chromium that shows pages of the dashboard, to tests and for the pictures in docs/."""

import os
import shutil

CHROMIUM = os.environ.get("KINTSUGI_CHROMIUM") or shutil.which("chromium-headless-shell") or shutil.which("chromium")
"""The shell shows pages and nothing else: the same tests take half of the processor time. Null where there is none."""
MISSING = "no Chromium: apt-get install chromium-headless-shell, or set KINTSUGI_CHROMIUM"
