"""Dictionary batches from a custom collate function and a batch sampler of unequal batches."""

import time

import slow
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset
from truth import truth


class Sentences(Dataset):
    lengths = (3, 5, 2, 7, 4, 6, 3, 2, 5, 4, 6, 7, 3)

    def __len__(self):
        return len(self.lengths)

    @truth("data_wait")
    def __getitem__(self, index):
        time.sleep(0.008)
        return {"ids": torch.arange(self.lengths[index]) + index, "label": index % 4}


class ByLength:
    """Batches of sentences of like length: never more than twelve tokens."""

    def __init__(self, lengths):
        self.batches = []
        for index in sorted(range(len(lengths)), key=lengths.__getitem__):
            if not self.batches or (len(self.batches[-1]) + 1) * lengths[index] > 12:
                self.batches.append([])
            self.batches[-1].append(index)

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


@truth("data_wait")
def collate(sentences):
    time.sleep(0.003)
    return {
        "input_ids": torch.nn.utils.rnn.pad_sequence([s["ids"] for s in sentences], batch_first=True),
        "labels": torch.tensor([s["label"] for s in sentences]),
    }


class Classifier(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(32, 8, padding_idx=0)
        self.head = torch.nn.Linear(8, 4)

    def forward(self, input_ids, labels=None):
        logits = self.head(slow.through(self.embedding(input_ids).mean(1)))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


torch.manual_seed(0)
model = Classifier()
optimizer = slow.AdamW(model.parameters(), lr=1e-2)
data = Sentences()
loader = DataLoader(data, batch_sampler=ByLength(data.lengths), collate_fn=collate)
for epoch in range(2):
    for batch in loader:
        truth.samples(len(batch["labels"]))
        with truth("forward"):
            outputs = model(**batch)
        with truth("backward"):
            outputs["loss"].backward()
        with truth("optimizer"):
            optimizer.step()
        optimizer.zero_grad()
        truth.step()
    print(epoch, f"{outputs['loss'].item():.6f}")
truth.inspect(model)
