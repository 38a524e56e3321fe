"""The choices of a user for a report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line is parsed without the libraries of an extra
    from stallscope.model.analysis.runs import Run

NO_CURRENCY = "\N{CURRENCY SIGN}"
"""Sign of money whose currency is unknown."""


@dataclass(frozen=True)
class Options:
    """Options; by default a report shows no cost and compares with no other run."""

    gpu_hour_price: float | None = None
    """Price of a GPU-hour in the currency."""
    kilowatt_hour_price: float | None = None
    """Price of a kilowatt-hour, if the price of a GPU-hour does not include it."""
    currency: str = ""
    zone: str = "UTC"
    """IANA name of the time zone in which times are shown."""
    against: Run | None = None
    """The run to compare with."""
    rows: int = 16
    """Maximum number of ranks, GPUs or nodes in a table; the most relevant are shown."""

    @property
    def currency_note(self) -> str:
        """A remark for the first amount of money; empty if the currency is known."""
        return "" if self.currency else f"; {NO_CURRENCY}: unknown currency, set --currency"

    def money(self, gpu_hours: float | None, joules: float | None) -> float | None:
        """Return the cost of GPU-hours and energy; None if no price applies."""
        parts = [
            amount * price
            for amount, price in (
                (gpu_hours, self.gpu_hour_price),
                (None if joules is None else joules / 3.6e6, self.kilowatt_hour_price),
            )
            if amount is not None and price is not None
        ]
        return sum(parts) if parts else None
