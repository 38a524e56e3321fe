"""Every case, one file a domain."""

from tests.scenarios.case import Case
from tests.scenarios.cases import abstentions, device, hardware, host, memory, negatives, ranks, time, use
from tests.scenarios.cases import input as input_pipeline

CASES: tuple[Case, ...] = (
    *input_pipeline.CASES,
    *device.CASES,
    *memory.CASES,
    *time.CASES,
    *ranks.CASES,
    *hardware.CASES,
    *use.CASES,
    *host.CASES,
    *negatives.CASES,
    *abstentions.CASES,
)
"""In the order of the domains."""
