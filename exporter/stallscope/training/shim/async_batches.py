"""Time a training loop by the asynchronous iterator that it iterates over."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator
    from typing import TypeVar

    from stallscope.training.shim.run import Run

    Batch = TypeVar("Batch")


async def async_batches(loader: AsyncIterable[Batch], run: Run, batches_per_step: int) -> AsyncIterator[Batch]:
    """Yield the batches, and measure steps and waits; other tasks may run during a wait."""
    timeline = run.timeline
    wait = timeline.phase("data_wait")
    batches = 0
    run.begin_pass()
    wait.__enter__()
    try:
        async for batch in loader:
            wait.__exit__()
            before = timeline.steps
            yield batch
            batches += 1
            if batches == batches_per_step:
                batches = 0
                if timeline.steps == before:
                    timeline.step()
            wait.__enter__()
    finally:
        wait.__exit__()
