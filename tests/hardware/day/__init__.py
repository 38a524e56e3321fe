"""The day with a real GPU: one command measures everything, and `tests.hardware.judge` judges it elsewhere.

The machine has Python with PyTorch. Nothing of Stallscope is installed there, so the package is imported from the tree.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PATHS = (str(ROOT), str(ROOT / "exporter"))
"""Where `tests` and `stallscope` are imported from, here and in all programs that the day starts."""

sys.path.extend(path for path in PATHS if path not in sys.path)
