"""Spinning Up's DDPG: updates after some actions, a test of the agent in training mode after each epoch."""

import random
import time

import slow
import torch
from truth import truth


class Environment:
    def __init__(self, seconds):
        self.seconds = seconds

    def step(self, action):
        time.sleep(self.seconds)
        return torch.randn(4) + action


class ActorCritic(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.pi = slow.Net(4, 1, forward=0.004)

    def act(self, observation):
        with torch.no_grad():
            return self.pi(observation)


def get_action(observation):
    return agent.act(observation) + 0.1 * random.random()


@truth("evaluation")
def test_agent():
    observation = torch.zeros(4)
    for _ in range(8):
        observation = test_environment.step(get_action(observation))
    print(f"test {observation.sum().item():.5f}")


@truth("data_wait")
def sample_batch():
    time.sleep(0.01)
    return torch.stack(random.sample(memory, 2))


def update():
    batch = sample_batch()
    optimizer.zero_grad()
    with truth("forward"):
        values = agent.pi(batch)
    loss = values.square().mean()
    with truth("backward"):
        loss.backward()
    with truth("optimizer"):
        optimizer.step()
    truth.step()


random.seed(0)
torch.manual_seed(0)
agent = ActorCritic()
optimizer = slow.AdamW(agent.pi.parameters(), lr=1e-3)
environment, test_environment = Environment(0.002), Environment(0.003)
memory = list(torch.randn(4, 4))
observation = torch.zeros(4)
for _ in range(2):
    update()
for epoch in range(2):
    for _ in range(4):
        for _ in range(2):
            with truth("forward"):
                action = get_action(observation)
            with truth("data_wait or other"):
                observation = environment.step(action)
            memory.append(observation)
        for _ in range(2):
            update()
    test_agent()
truth.inspect(agent)
