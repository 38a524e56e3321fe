"""Recurrent network without a loader: get_batch() draws the input, a function detaches the state carried along."""

import time

import slow
import torch
from torch import nn
from truth import truth

torch.manual_seed(5)
text = torch.randint(12, (48, 4))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(12, 8)
        self.recurrent = nn.LSTM(8, 8)
        self.output = nn.Linear(8, 12)

    def forward(self, tokens, state):
        hidden, state = self.recurrent(self.embedding(tokens), state)
        return slow.through(self.output(hidden)), state


def get_batch(position):
    with truth("data_wait"):
        time.sleep(0.02)
        return text[position : position + 4], text[position + 1 : position + 5]


def detached(state):
    return tuple(each.detach() for each in state)


model = Tagger()
optimizer = slow.SGD(model.parameters(), lr=0.1)
state = (torch.zeros(1, 4, 8), torch.zeros(1, 4, 8))
for position in range(0, 40, 4):
    tokens, following = get_batch(position)
    optimizer.zero_grad()
    state = detached(state)
    with truth("forward"):
        scores, state = model(tokens, state)
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), following.flatten())
    with truth("backward"):
        loss.backward()
    with truth("optimizer"):
        optimizer.step()
    truth.step()
    print(f"{loss.item():.5f}")
truth.inspect(model)
