"""Rows that a generator yields as lists, tokenized and converted in the loop's body; a log that returns an object."""

import time

import slow
import torch
import torch.nn.functional as F
from truth import truth

torch.manual_seed(0)


def read_rows(number):
    for first in range(number):
        with truth("data_wait"):
            time.sleep(0.02)
        yield [{"text": "a bc def", "label": (first + row) % 4} for row in range(8)]


@truth("data_wait")
def tokenize(text):
    time.sleep(0.001)
    return [float(len(word)) for word in text.split()]


def log(value):
    time.sleep(0.03)
    return {"loss": value}


model = slow.Net(3, forward=0.004, backward=0.006)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
history = []
for rows in read_rows(30):
    x = torch.tensor([tokenize(row["text"]) for row in rows])
    y = torch.tensor([row["label"] for row in rows])
    optimizer.zero_grad()
    with truth("forward"):
        output = model(x)
    loss = F.cross_entropy(output, y)
    with truth("backward"):
        loss.backward()
    with truth("optimizer"):
        optimizer.step()
    truth.step()
    entry = log(loss.item())
    history.append(entry["loss"])
print(f"{history[-1]:.6f}")
