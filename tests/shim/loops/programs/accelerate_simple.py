"""Accelerate's NLP example: prepare(), evaluation with gather_for_metrics() after each epoch."""

import slow
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader
from truth import truth


def training_function():
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = slow.Net()
    optimizer = slow.AdamW(model.parameters(), lr=1e-2)
    train_dataloader = DataLoader(slow.Samples(15), shuffle=True, batch_size=4)
    eval_dataloader = DataLoader(slow.Samples(8), shuffle=False, batch_size=4)
    model, optimizer, train_dataloader, eval_dataloader = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader
    )
    for epoch in range(2):
        model.train()
        for inputs, targets in train_dataloader:
            truth.samples(len(inputs))
            with truth("forward"):
                outputs = model(inputs)
            loss = F.cross_entropy(outputs, targets)
            with truth("backward"):
                accelerator.backward(loss)
            with truth("optimizer"):
                optimizer.step()
            optimizer.zero_grad()
            truth.step()
        with truth("evaluation"):
            model.eval()
            correct = 0
            for inputs, targets in eval_dataloader:
                with torch.no_grad():
                    outputs = model(inputs)
                predicted, references = accelerator.gather_for_metrics((outputs.argmax(-1), targets))
                correct += (predicted == references).sum().item()
        accelerator.print(f"epoch {epoch}: {correct}")
    return accelerator.unwrap_model(model)


if __name__ == "__main__":
    truth.inspect(training_function())
