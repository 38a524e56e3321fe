"""DQN: acting under no_grad, batches sampled from a replay memory, target network updated softly."""

import random
import time
from collections import deque

import slow
import torch
import torch.nn.functional as F
from truth import truth


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque(maxlen=capacity)

    def push(self, *transition):
        self.memory.append(transition)

    @truth("data_wait")
    def sample(self, batch_size):
        time.sleep(0.02)
        states, actions, rewards, following = zip(*random.sample(self.memory, batch_size))
        return torch.stack(states), torch.tensor(actions), torch.tensor(rewards), torch.stack(following)

    def __len__(self):
        return len(self.memory)


random.seed(0)
torch.manual_seed(0)
policy_net = slow.Net(4, 2)
target_net = slow.Net(4, 2, forward=0.008)
target_net.load_state_dict(policy_net.state_dict())
optimizer = slow.AdamW(policy_net.parameters(), lr=1e-3, amsgrad=True)
memory = ReplayMemory(100)
state = torch.zeros(4)
for _ in range(8):  # before the loop: random play
    following = torch.randn(4)
    memory.push(state, random.randrange(2), 1.0, following)
    state = following
for step in range(9):
    action = random.randrange(2)
    with truth("data_wait or other"):
        time.sleep(0.002)  # the environment
        following = state + torch.randn(4)
    memory.push(state, action, 1.0, following)
    state = following
    states, actions, rewards, next_states = memory.sample(6)
    with truth("forward"):
        values = policy_net(states)
    values = values.gather(1, actions.unsqueeze(1))
    with torch.no_grad():
        with truth("forward"):
            next_values = target_net(next_states)
        next_values = next_values.max(1).values
    loss = F.smooth_l1_loss(values, (rewards + 0.99 * next_values).unsqueeze(1))
    optimizer.zero_grad()
    with truth("backward"):
        loss.backward()
    torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    with truth("optimizer"):
        optimizer.step()
    truth.step()
    target, source = target_net.state_dict(), policy_net.state_dict()
    for key in source:
        target[key] = source[key] * 0.005 + target[key] * 0.995
    target_net.load_state_dict(target)
    print(f"step {step} loss {loss.item():.6f}")
truth.inspect(policy_net)
