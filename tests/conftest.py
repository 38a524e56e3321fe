"""What tests in any folder may ask for."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import settings

from tests.nvml_library.stand_in import NvmlStandIn

# A shell in the background has it ignored for all that it runs, and the tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Nothing asserts a speed, and other tests run beside.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


@pytest.fixture
def nvml_stand_in(tmp_path: Path) -> NvmlStandIn:
    """A node of eight healthy, idle H100s behind a stand-in for the driver's library."""
    return NvmlStandIn(tmp_path)
