"""PyTorch's word_language_model generate: no training at all, text drawn from a trained model under no_grad."""

import time

import slow
import torch
from truth import truth

torch.manual_seed(3)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(12, 8)
        self.head = torch.nn.Linear(8, 12)

    def forward(self, token):
        return self.head(slow.through(self.embedding(token), 0.01))


def random_tokens():
    time.sleep(0.02)
    return torch.randint(12, (6,))


model = Model()
optimizer = slow.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    with truth("data_wait"):
        tokens = random_tokens()
    with truth("forward"):
        output = model(tokens[:-1])
    loss = torch.nn.functional.cross_entropy(output, tokens[1:])
    optimizer.zero_grad()
    with truth("backward"):
        loss.backward()
    with truth("optimizer"):
        optimizer.step()
    truth.step()

model.eval()
with open("generated.txt", "w") as file, truth("evaluation"), torch.no_grad():
    token = torch.tensor([1])
    for _ in range(30):
        token = torch.multinomial(model(token).softmax(-1)[-1], 1)
        file.write(f"{token.item()} ")
truth.inspect(model)
