"""A loop under Accelerate that knows nothing of Stallscope; run by `test_accelerate.py` under `stallscope run`.

Six batches of 22 examples, four a step, so that each epoch's second step has two; evaluated and saved, and loaded once.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from tests.shim.integrations import slow_torch
from tests.shim.integrations.truth import Truth

truth = Truth()


class Slow:
    """Takes its time when it is saved and loaded."""

    def state_dict(self) -> dict[str, Any]:
        time.sleep(slow_torch.SAVE)
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        time.sleep(slow_torch.SAVE)


def timed(loader: Any) -> Iterator[Any]:
    """Iterate over a loader, and measure the waits."""
    with truth("data_wait"):
        batches = iter(loader)
    while True:
        with truth("data_wait"):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def main(folder: Path, **settings: Any) -> Accelerator:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4, **settings)
    if settings:
        accelerator.init_trackers("project")
    model: Any = slow_torch.Net(truth)
    model, optimizer, loader, evaluation = accelerator.prepare(
        model,
        slow_torch.SGD(model.parameters(), truth),
        torch.utils.data.DataLoader(slow_torch.Examples(truth), batch_size=4),
        torch.utils.data.DataLoader(slow_torch.Examples(truth, trains=False), batch_size=8),
    )
    accelerator.register_for_checkpointing(Slow())
    for epoch in range(3):
        model.train()
        for inputs, labels in timed(loader):
            with accelerator.accumulate(model):
                loss = torch.nn.functional.cross_entropy(model(inputs), labels)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        with truth("evaluation"):
            model.eval()
            with torch.no_grad():
                for inputs, _ in evaluation:
                    model(inputs)
        with truth("checkpoint"):
            accelerator.save_state(str(folder / f"state-{epoch}"))
        if epoch == 1:
            with truth("restore"):
                accelerator.load_state(str(folder / "state-0"))
    for part in model.modules():
        assert not part._forward_hooks
        assert not part._forward_pre_hooks
    return accelerator


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    with slow_torch.timed_backward(truth):
        main(folder)
    truth.write(folder / "truth.json")
