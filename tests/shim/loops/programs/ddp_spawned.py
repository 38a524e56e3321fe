"""DistributedDataParallel over gloo, two spawned ranks, with an evaluation that ends in all_reduce()."""

import os

import slow
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
from truth import truth


@truth("evaluation")
@torch.no_grad()
def evaluate(model):
    model.eval()
    total = torch.zeros(1)
    for inputs, targets in DataLoader(slow.Samples(6), batch_size=2):
        total += F.cross_entropy(model(inputs), targets)
    dist.all_reduce(total)
    return total.item()


def main(rank, meeting):
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    truth.rank(rank)
    slow.slow_down(dist.ProcessGroup, "allreduce", 0.02)
    torch.manual_seed(rank)
    model = DDP(slow.Net())
    optimizer = slow.AdamW(model.parameters(), lr=1e-2)
    data = slow.Samples(20)
    for epoch in range(2):
        model.train()
        for inputs, targets in DataLoader(data, batch_size=2, sampler=DistributedSampler(data)):
            truth.samples(len(inputs))
            optimizer.zero_grad()
            with truth("forward"):
                output = model(inputs)
            loss = F.cross_entropy(output, targets)
            with truth("backward"):
                loss.backward()
            with truth("optimizer"):
                optimizer.step()
            truth.step()
        total = evaluate(model)
        if rank == 0:
            print(epoch, f"{total:.5f}", flush=True)
    truth.inspect(model)
    dist.barrier()
    del model, optimizer  # they hold the process group, whose threads PyTorch aborts on if they outlive it
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(main, (os.path.abspath("../meeting"),), nprocs=2)
