"""Machines that cases play on, by their makers' data sheets."""

from __future__ import annotations

from tests.scenarios.story import GIB, Card, Node

H100 = Card(
    model="NVIDIA H100 80GB HBM3",
    architecture="Hopper",
    compute_capability="9.0",
    memory=85520809984,
    watts=700,
    idle_watts=70,
    clock=1.98e9,
    memory_clock=2.619e9,
    profiled=True,
    datacentre=True,
    links=18,
    generation=5,
)
L40S = Card(
    model="NVIDIA L40S",
    architecture="Ada Lovelace",
    compute_capability="8.9",
    memory=48305799168,
    watts=350,
    idle_watts=35,
    clock=2.52e9,
    memory_clock=9.001e9,
    datacentre=True,
)
RTX_2080_TI = Card(
    model="NVIDIA GeForce RTX 2080 Ti",
    architecture="Turing",
    compute_capability="7.5",
    memory=11554717696,
    watts=250,
    idle_watts=15,
    clock=2.1e9,
    memory_clock=7.0e9,
    generation=3,
)
RTX_4080_LAPTOP = Card(
    model="NVIDIA GeForce RTX 4080 Laptop GPU",
    architecture="Ada Lovelace",
    compute_capability="8.9",
    memory=12878610432,
    watts=150,
    idle_watts=12,
    clock=2.28e9,
    memory_clock=9.001e9,
    width=8,
)

LAPTOP = Node(card=RTX_4080_LAPTOP, gpus=1, cpus=16, memory=32 * GIB, link=0.125e9, shared_memory=16 * GIB)
WORKSTATION = Node(card=RTX_2080_TI, gpus=2, cpus=24, memory=64 * GIB, link=0.125e9, shared_memory=32 * GIB)
"""The machine of the published study: two GPUs, one good CPU."""
CLOUD = Node(card=L40S, gpus=1, cpus=8, memory=64 * GIB, link=1.25e9, shared_memory=32 * GIB)
"""A small instance with 10 Gb/s."""
SERVER = Node(card=L40S, gpus=2, cpus=32, memory=256 * GIB, link=3.125e9, nfs="/data", shared_memory=128 * GIB)
SERVER_4 = Node(card=L40S, gpus=4, cpus=64, memory=512 * GIB, link=3.125e9, nfs="/data", shared_memory=256 * GIB)
SINGLE = Node(card=H100, gpus=1, cpus=24, memory=256 * GIB, link=12.5e9, rdma=1, nfs="/data", shared_memory=128 * GIB)
"""An eighth of the last one: most stories need no more, and rules take their time by GPU."""
PAIR = Node(card=H100, gpus=2, cpus=48, memory=512 * GIB, link=12.5e9, rdma=2, nfs="/data", shared_memory=256 * GIB)
QUAD = Node(card=H100, gpus=4, cpus=96, memory=1024 * GIB, link=12.5e9, rdma=4, nfs="/data", shared_memory=512 * GIB)
HGX = Node(card=H100, gpus=8, cpus=192, memory=2048 * GIB, link=12.5e9, rdma=8, nfs="/data", shared_memory=1024 * GIB)
