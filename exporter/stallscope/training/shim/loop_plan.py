"""The plan of a loop: what its steps are worth, and how many there are, as the program or the loader describes them.

Imported with the first loop that has such a description.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized

from stallscope.training.shim.checked_numbers import number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stallscope.training.shim.session import Session


def plan(
    run: Session,
    loader: Iterable[object],
    samples_per_step: float | None,
    tokens_per_step: float | None,
    flops_per_step: float | None,
    steps_planned: int | None,
    epochs: int | None,
    batches_per_step: int,
) -> None:
    """Plan a run by the arguments of `track`, and by the length and the attributes of the loader."""
    size = getattr(loader, "batch_size", None)
    if samples_per_step is None and type(size) is int and run.batch_size is None:
        samples_per_step = size * max(batches_per_step, 1)
    if steps_planned is None and (passes := number(epochs)) is not None and isinstance(loader, Sized):
        steps_planned = int(passes * (len(loader) // max(batches_per_step, 1)))
    run.plan(samples_per_step, tokens_per_step, flops_per_step, steps_planned)
    workers = getattr(loader, "num_workers", None)
    if number(workers) is not None:
        run.gauge("dataloader_workers", workers)
