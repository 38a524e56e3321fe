"""PyTorch's time_sequence_prediction: LBFGS with a closure, prediction under no_grad after each step."""

import slow
import torch
from torch import nn, optim
from truth import truth


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm1 = nn.LSTMCell(1, 6)
        self.linear = nn.Linear(6, 1)

    def forward(self, input, future=0):
        outputs = []
        h = torch.zeros(input.size(0), 6)
        c = torch.zeros(input.size(0), 6)
        for value in input.split(1, dim=1):
            h, c = self.lstm1(value, (h, c))
            output = self.linear(h)
            outputs.append(output)
        for _ in range(future):
            h, c = self.lstm1(output, (h, c))
            output = self.linear(h)
            outputs.append(output)
        return slow.through(torch.cat(outputs, dim=1), 0.01, 0.02)


torch.manual_seed(0)
data = torch.sin(torch.arange(12.0).repeat(4, 1) / 2 + torch.randn(4, 1))
input, target = data[1:, :-1], data[1:, 1:]
test_input, test_target = data[:1, :-1], data[:1, 1:]
seq = Sequence()
criterion = nn.MSELoss()
optimizer = optim.LBFGS(seq.parameters(), lr=0.8, max_iter=5)
for i in range(4):

    def closure():
        optimizer.zero_grad()
        with truth("forward"):
            out = seq(input)
        loss = criterion(out, target)
        with truth("backward"):
            loss.backward()
        return loss

    with truth("optimizer"):
        loss = optimizer.step(closure)
    truth.step()
    print(f"step {i} loss {loss.item():.4f}")
    with truth("evaluation"), torch.no_grad():
        pred = seq(test_input, future=10)
        print(f"test loss {criterion(pred[:, :-10], test_target).item():.4f}")
truth.inspect(seq)
