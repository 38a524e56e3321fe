"""Values of a launcher, and the numbers in its variables."""

from __future__ import annotations

from stallscope.training.protocol.vocabulary import MAX_RANK
from stallscope.training.shim.tolerance import complain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    Environment = Mapping[str, str]


class Launch:
    """Values of a launcher; None where it sets none."""

    __slots__ = ("local_rank", "rank", "world_size")

    def __init__(self, rank: int, local_rank: int | None, world_size: int | None) -> None:
        self.rank = rank
        self.local_rank = local_rank
        self.world_size = world_size


def whole(environment: Environment, variable: str) -> int | None:
    """Return a variable with a whole number; None if it is not set, or is something else."""
    text = environment.get(variable, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) <= MAX_RANK):
        complain(f"{variable} is {text!r:.80}; expected a whole number from 0 to {MAX_RANK}, it is not used")
        return None
    return int(text)
