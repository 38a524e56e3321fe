"""The invented program of the simulated ranks: the lines in which it loses its time, and its stacks at a standstill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from stallscope.training.protocol.stacks import Frame, Stack
from stallscope.training.shim.bursts import Burst, Line
from stallscope.training.shim.timeline import Timeline

_LIBRARIES = "/simulated/site-packages/"

Lines = Mapping[str, tuple[Line, ...]]
"""The lines of each phase that loses time, those with the largest share first."""

AUGMENTING: Lines = {
    "data_wait": (
        Line("simulated/augment.py:41", "elastic_transform > scipy.ndimage.map_coordinates", 0.62, 0),
        Line("simulated/dataset.py:27", "read_sample > PIL.Image.open", 0.21, 0),
        Line("simulated/augment.py:58", "normalise", 0.09, 0),
    )
}
READING: Lines = {
    "data_wait": (
        Line("simulated/dataset.py:27", "read_sample > PIL.Image.open", 0.81, 0),
        Line("simulated/augment.py:58", "normalise", 0.08, 0),
    )
}
COLLATING: Lines = {
    "data_wait": (
        Line("simulated/collate.py:15", "pad_batch", 0.74, 0),
        Line("simulated/collate.py:22", "pad_batch > numpy.stack", 0.18, 0),
    )
}
SAVING: Lines = {"checkpoint": (Line("simulated/checkpoint.py:33", "save > torch.serialization.save", 0.93, 0),)}
EVALUATING: Lines = {
    "evaluation": (
        Line("simulated/evaluate.py:52", "word_errors", 0.57, 0),
        Line("simulated/evaluate.py:31", "evaluate > torch.nn.modules.module.Module._call_impl", 0.36, 0),
    )
}
LOGGING: Lines = {
    "logging": (
        Line("simulated/logging.py:64", "draw_histograms", 0.71, 0),
        Line("simulated/logging.py:80", "upload > requests.api.post", 0.22, 0),
    )
}
SYNCHRONIZING: Lines = {"other": (Line("simulated/train.py:84", "train", 0.88, 0),)}


class Standstill(NamedTuple):
    """The stacks of all ranks at a standstill."""

    most: Stack
    odd: Mapping[int, Stack] = {}
    """Stacks of the ranks that differ from most ranks."""

    def of(self, rank: int) -> Stack:
        """Return the stack of a rank."""
        return self.odd.get(rank, self.most)


_MAIN = Frame("/simulated/train.py", 118, "main")
_TRAIN = (Frame("/simulated/train.py", 79, "train"), _MAIN)
_NEXT_BATCH = (
    Frame(_LIBRARIES + "torch/utils/data/dataloader.py", 708, "__next__"),
    Frame("/simulated/train.py", 74, "train"),
    _MAIN,
)
IN_LOADER: Stack = (Frame(_LIBRARIES + "torch/utils/data/dataloader.py", 1448, "_get_data"), *_NEXT_BATCH)
IN_STORAGE: Stack = (
    Frame(_LIBRARIES + "PIL/Image.py", 3513, "open"),
    Frame("/simulated/dataset.py", 27, "read_sample"),
    *_NEXT_BATCH,
)
IN_ALL_REDUCE: Stack = (
    Frame(_LIBRARIES + "torch/distributed/distributed_c10d.py", 2926, "all_reduce"),
    Frame("/simulated/gradients.py", 19, "average"),
    *_TRAIN,
)
IN_ALL_GATHER: Stack = (
    Frame(_LIBRARIES + "torch/distributed/distributed_c10d.py", 3894, "all_gather"),
    Frame("/simulated/metrics.py", 46, "gather_accuracy"),
    *_TRAIN,
)
IN_SYNCHRONIZE: Stack = (Frame(_LIBRARIES + "torch/cuda/__init__.py", 1085, "synchronize"), *_TRAIN)


class SimulatedBurst(Burst):
    """A burst of samples that is over at once, and has found the given lines."""

    is_over = True

    def __init__(self, timeline: Timeline, lines: Lines) -> None:
        """Store the lines."""
        super().__init__(timeline)
        self._found = lines

    def start(self) -> None:
        """Take no samples."""

    def lines(self) -> dict[str, list[Line]]:
        """Return the lines of the phases that have passed."""
        return {phase: list(lines) for phase, lines in self._found.items() if phase in self.booked}
