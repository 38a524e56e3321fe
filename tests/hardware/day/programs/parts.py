"""Models and data that several planted programs share: large on a GPU, tiny on a CPU."""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.hardware.day.programs.truth import CUDA, DEVICE, Truth

WIDTH = 2048 if CUDA else 128
LENGTH = 512 if CUDA else 32
BATCH = 16 if CUDA else 4
_TOKENS = 32_000 if CUDA else 100
_LAYERS = 8 if CUDA else 2

if not CUDA:
    torch.set_num_threads(1)  # a rehearsal leaves the other cores to loader workers and the exporter


class Transformer(nn.Module):
    """A small language model."""

    def __init__(self, width: int = WIDTH, layers: int = _LAYERS) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_TOKENS, width)
        layer = nn.TransformerEncoderLayer(width, width // 64 or 1, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.output = nn.Linear(width, _TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the loss of predicting each token from the others."""
        scores = self.output(self.layers(self.embedding(tokens)))
        return nn.functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())


class Tokens(Dataset[torch.Tensor]):
    """Samples without end, each through a transform that computes for a while."""

    def __init__(self, transform_seconds: float = 0.0) -> None:
        self._transform_seconds = transform_seconds

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._transform_seconds:
            burn(self._transform_seconds)
        return torch.randint(_TOKENS, (LENGTH,))


class Loss(nn.Module):
    """Mean square of a module's output."""

    def forward(self, output: torch.Tensor | tuple[torch.Tensor, object]) -> torch.Tensor:
        """Return it, also for recurrent networks, which return their state too."""
        values = output[0] if isinstance(output, tuple) else output
        return values.square().mean()


def step(model: Transformer, optimizer: torch.optim.Optimizer, tokens: torch.Tensor) -> None:
    """Train on one batch in bfloat16."""
    tokens = tokens.to(DEVICE, non_blocking=True)
    with torch.autocast(DEVICE, torch.bfloat16):
        loss = model(tokens)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def train(loader: DataLoader[torch.Tensor]) -> None:
    """Train a transformer until the program's time is over, and write the truth: lost is the time without a batch."""
    model = Transformer().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA)
    truth = Truth()
    for tokens in loader:
        truth.begin_step()
        step(model, optimizer, tokens)
        if truth.end_step():
            break
    truth.write(lost="idle" if CUDA else "waited")


def train_again(model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor, lost: str = "") -> None:
    """Train on the same batch until the program's time is over, and write the truth; `lost` as in `Truth.write`."""
    truth = Truth()
    while True:
        truth.begin_step()
        loss = model(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if truth.end_step():
            break
    truth.write(lost=lost)


def burn(seconds: float) -> None:
    """Use that much CPU time of this thread, as for decoding an image."""
    image = torch.ones(64, 64)
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        image = torch.tanh(image @ image)
