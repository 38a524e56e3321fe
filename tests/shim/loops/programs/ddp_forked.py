"""DistributedDataParallel over gloo, two forked ranks: DistributedSampler, no_sync(), all_reduce of the metric."""

import os
import time

import slow
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from truth import truth


def work(rank, world_size, meeting):
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world_size)
    truth.rank(rank)
    for name in ("allreduce", "barrier"):
        slow.slow_down(dist.ProcessGroup, name, 0.02)
    torch.manual_seed(0)
    model = DistributedDataParallel(slow.Net())
    optimizer = slow.SGD(model.parameters(), lr=0.05)
    data = slow.Samples(24)
    sampler = DistributedSampler(data, world_size, rank, shuffle=True)
    loader = DataLoader(data, batch_size=2, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        model.train()
        total = torch.zeros(1)
        for number, (inputs, targets) in enumerate(loader):
            truth.samples(len(inputs))
            if number % 2 == 0:
                with model.no_sync():
                    with truth("forward"):
                        output = model(inputs)
                    loss = F.cross_entropy(output, targets)
                    with truth("backward"):
                        loss.backward()
            else:
                with truth("forward"):
                    output = model(inputs)
                loss = F.cross_entropy(output, targets)
                with truth("backward"):
                    loss.backward()
                with truth("optimizer"):
                    optimizer.step()
                optimizer.zero_grad()
                truth.step()
            total += loss.detach()
        time.sleep(0.03 if rank == 0 else 0.06)  # logging, longer on one rank
        with truth("communication"):
            dist.all_reduce(total)
        if rank == 0:
            print(epoch, f"{total.item():.5f}", flush=True)
            with truth("checkpoint"):
                torch.save(model.module.state_dict(), f"epoch{epoch}.pt")
        with truth("communication"):
            dist.barrier()
    truth.inspect(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.start_processes(work, (2, os.path.abspath("../meeting")), nprocs=2, start_method="fork")
