"""A well-fed transformer in bfloat16: nothing is planted."""

from __future__ import annotations

from torch.utils.data import DataLoader

from tests.hardware.day.programs.parts import BATCH, Tokens, train
from tests.hardware.day.programs.truth import CUDA

train(DataLoader(Tokens(), batch_size=BATCH, num_workers=2, pin_memory=CUDA))
