"""Loop without a loader: each batch is cut out of tensors inline, after a permutation."""

import slow
import torch
import torch.nn.functional as F
from clock import clock
from truth import truth

torch.manual_seed(0)
X = torch.randn(48, 8)
Y = torch.randint(4, (48,))
model = slow.Net()
optimizer = slow.SGD(model.parameters(), lr=0.05)
batch_size = 8
for epoch in range(2):
    permutation = torch.randperm(len(X))
    for i in range(0, len(X), batch_size):
        with truth("data_wait"):
            indices = permutation[i : i + batch_size]
            batch_x, batch_y = X[indices], Y[indices]
            batch_x = batch_x + 0.01 * torch.randn(batch_x.shape)  # augmentation
            clock.copy(0.014)
        with truth("forward"):
            output = model(batch_x)
        loss = F.cross_entropy(output, batch_y)
        with truth("backward"):
            loss.backward()
        with truth("optimizer"):
            optimizer.step()
        optimizer.zero_grad()
        truth.step()
    print(epoch, f"{loss.item():.6f}")
truth.inspect(model)
