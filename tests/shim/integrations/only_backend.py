"""Imported before Keras: only the framework of the backend seems to be installed, as on most machines.

Keras imports each framework that it finds, whichever it computes with, and TensorFlow alone takes seven seconds.
"""

from __future__ import annotations

import os
import sys
from typing import Any

BACKEND = os.environ["KERAS_BACKEND"]
_modules: dict[str, Any] = vars(sys)["modules"]
_modules.update(dict.fromkeys({"jax", "tensorflow", "torch"} - {BACKEND}))
