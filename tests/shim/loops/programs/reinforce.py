"""PyTorch's REINFORCE example: an environment in the loop, one step for each episode."""

import time

import slow
import torch
from torch import nn, optim
from torch.distributions import Categorical
from truth import truth


class Environment:
    def reset(self):
        self.length = 0
        return torch.zeros(4)

    def step(self, action):
        time.sleep(0.006)
        self.length += 1
        return torch.full((4,), self.length / 5.0) + action, 1.0, self.length >= 5


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(4, 8)
        self.affine2 = nn.Linear(8, 2)
        self.saved_log_probs = []
        self.rewards = []

    def forward(self, x):
        return torch.softmax(slow.through(self.affine2(torch.relu(self.affine1(x))), 0.008, 0.006), dim=1)


torch.manual_seed(543)
env = Environment()
policy = Policy()
optimizer = optim.Adam(policy.parameters(), lr=1e-2)


def select_action(state):
    state = state.float().unsqueeze(0)
    with truth("forward"):
        probs = policy(state)
    m = Categorical(probs)
    action = m.sample()
    policy.saved_log_probs.append(m.log_prob(action))
    return action.item()


def finish_episode():
    total = 0
    returns = []
    for r in policy.rewards[::-1]:
        total = r + 0.99 * total
        returns.insert(0, total)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-8)
    policy_loss = [-log_prob * R for log_prob, R in zip(policy.saved_log_probs, returns)]
    optimizer.zero_grad()
    loss = torch.cat(policy_loss).sum()
    with truth("backward"):
        loss.backward()
    with truth("optimizer"):
        optimizer.step()
    truth.step()
    del policy.rewards[:]
    del policy.saved_log_probs[:]
    return loss.item()


for i_episode in range(9):
    state = env.reset()
    for _ in range(10):
        action = select_action(state)
        with truth("data_wait or other"):
            state, reward, done = env.step(action)
        policy.rewards.append(reward)
        if done:
            break
    print(f"episode {i_episode} loss {finish_episode():.5f}")
truth.inspect(policy)
