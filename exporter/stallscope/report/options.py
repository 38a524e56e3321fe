"""What whoever asks for a report may choose."""

from __future__ import annotations

from dataclasses import dataclass

from stallscope.analysis.runs import Run


@dataclass(frozen=True)
class Options:
    """Choices; without any, a report tells no money and compares with no other run."""

    gpu_hour_price: float | None = None
    """What an hour of one GPU costs, in the currency."""
    kilowatt_hour_price: float | None = None
    """What a kilowatt-hour costs, where it isn't in the GPU-hour's price already."""
    currency: str = ""
    zone: str = "UTC"
    """In which times are shown, by its IANA name."""
    against: Run | None = None
    """Another run to measure how this one scales."""
    rows: int = 16
    """Of ranks, GPUs and nodes that are shown one by one; those that say most, where there are more."""

    def money(self, gpu_hours: float | None, joules: float | None) -> float | None:
        """What GPU-hours and energy cost; None where no price is told, or nothing that has a price."""
        parts = [
            amount * price
            for amount, price in (
                (gpu_hours, self.gpu_hour_price),
                (None if joules is None else joules / 3.6e6, self.kilowatt_hour_price),
            )
            if amount is not None and price is not None
        ]
        return sum(parts) if parts else None
