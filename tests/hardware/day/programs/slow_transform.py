"""Planted: a transform in loader workers that is slower than the GPU."""

from __future__ import annotations

from torch.utils.data import DataLoader

from tests.hardware.day.programs.parts import BATCH, Tokens, train
from tests.hardware.day.programs.truth import CUDA

train(DataLoader(Tokens(transform_seconds=0.02), batch_size=BATCH, num_workers=2, pin_memory=CUDA))
