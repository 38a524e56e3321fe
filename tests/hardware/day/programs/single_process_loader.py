"""Planted: a loader without workers, whose transform runs between two steps."""

from __future__ import annotations

from torch.utils.data import DataLoader

from tests.hardware.day.programs.parts import BATCH, Tokens, train
from tests.hardware.day.programs.truth import CUDA

train(DataLoader(Tokens(transform_seconds=0.008), batch_size=BATCH, num_workers=0, pin_memory=CUDA))
