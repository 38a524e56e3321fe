"""FSDP2 over gloo, two forked ranks: fully_shard(), clipping, a sharded checkpoint."""

import os
import time

import slow
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler
from truth import truth


class Sleep(torch.autograd.Function):
    @staticmethod
    @truth("forward")
    def forward(ctx, x):
        time.sleep(0.015)
        return x.clone()

    @staticmethod
    @truth("backward")
    def backward(ctx, gradient):
        time.sleep(0.025)
        return gradient


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(8, 16)
        self.second = torch.nn.Linear(16, 4)

    def forward(self, x):
        return Sleep.apply(self.second(torch.relu(self.first(x))))


def work(rank, meeting):
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    truth.rank(rank)
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2,))
    model = Net()
    fully_shard(model.first, mesh=mesh)
    fully_shard(model.second, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = slow.AdamW(model.parameters(), lr=1e-2)
    data = slow.Samples(20)
    for epoch in range(2):
        for inputs, targets in DataLoader(data, batch_size=2, sampler=DistributedSampler(data)):
            truth.samples(len(inputs))
            # What FSDP gathers and reduces may count for the pass or as communication.
            with truth("forward or communication"):
                output = model(inputs)
            loss = F.cross_entropy(output, targets)
            with truth("backward or communication"):
                loss.backward()
            with truth("optimizer"):
                optimizer.step()
            optimizer.zero_grad()
            truth.step()
        if rank == 0:
            print(epoch, f"{loss.item():.5f}", flush=True)
    with truth("checkpoint or communication"):
        dcp.save(get_model_state_dict(model), checkpoint_id="checkpoint")
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.start_processes(work, (os.path.abspath("../meeting"),), nprocs=2, start_method="fork")
