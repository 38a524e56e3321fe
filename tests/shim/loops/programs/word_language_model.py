"""PyTorch's word_language_model: get_batch(), p.data.add_() as the update, evaluate(), the best model saved."""

import time

import slow
import torch
from torch import nn
from truth import truth

torch.manual_seed(11)
tokens, bptt = 12, 6


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(tokens, 8)
        self.rnn = nn.GRU(8, 8)
        self.decoder = nn.Linear(8, tokens)

    def forward(self, input, hidden):
        output, hidden = self.rnn(self.encoder(input), hidden)
        return slow.through(self.decoder(output)).view(-1, tokens), hidden

    def init_hidden(self, size):
        return next(self.parameters()).new_zeros(1, size, 8)


def batchify(data, size):
    return data[: len(data) // size * size].view(size, -1).t().contiguous()


@truth("data_wait")
def get_batch(source, i):
    time.sleep(0.01)
    length = min(bptt, len(source) - 1 - i)
    return source[i : i + length], source[i + 1 : i + 1 + length].view(-1)


train_data = batchify(torch.randint(tokens, (160,)), 4)
val_data = batchify(torch.randint(tokens, (60,)), 4)
model = RNNModel()
criterion = nn.CrossEntropyLoss()


@truth("evaluation")
def evaluate(source):
    model.eval()
    total = 0.0
    hidden = model.init_hidden(4)
    with torch.no_grad():
        for i in range(0, source.size(0) - 1, bptt):
            data, targets = get_batch(source, i)
            output, hidden = model(data, hidden)
            total += len(data) * criterion(output, targets).item()
    return total / (len(source) - 1)


def train():
    model.train()
    hidden = model.init_hidden(4)
    for i in range(0, train_data.size(0) - 1, bptt):
        data, targets = get_batch(train_data, i)
        model.zero_grad()
        hidden = hidden.detach()
        with truth("forward"):
            output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        with truth("backward"):
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-0.5)
        truth.step()
    print(f"loss {loss.item():.5f}")


best = None
for _ in range(2):
    train()
    loss = evaluate(val_data)
    print(f"validation loss {loss:.5f}")
    if best is None or loss < best:
        with truth("checkpoint"), open("model.pt", "wb") as file:
            torch.save(model, file)
        best = loss
with open("model.pt", "rb") as file, truth("restore"):
    model = torch.load(file, weights_only=False)
    model.rnn.flatten_parameters()
print(f"test loss {evaluate(val_data):.5f}")
truth.inspect(model)
