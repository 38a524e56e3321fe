"""PPO: a rollout of the environment under no_grad, then several epochs of minibatch steps on what it gathered."""

import time

import slow
import torch
from torch import nn
from torch.distributions import Categorical
from truth import truth


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 16)
        self.actor = nn.Linear(16, 2)
        self.critic = nn.Linear(16, 1)

    def forward(self, x, seconds):
        hidden = slow.through(torch.tanh(self.body(x)), *seconds)
        return Categorical(logits=self.actor(hidden)), self.critic(hidden)


class Environment:
    def reset(self):
        return torch.zeros(2, 4)

    def step(self, action):
        time.sleep(0.006)
        return torch.randn(2, 4) + action[:, None], torch.ones(2)


torch.manual_seed(0)
env = Environment()
agent = Agent()
optimizer = slow.AdamW(agent.parameters(), lr=2.5e-4, eps=1e-5)
next_obs = env.reset()
for update in range(2):
    # The rollout prepares the data of the next steps, by acting: several phases are right for it.
    with truth("data_wait or forward or evaluation or other or initialization"):
        obs, actions, logprobs, rewards = [], [], [], []
        for _ in range(8):
            obs.append(next_obs)
            with torch.no_grad():
                distribution, value = agent(next_obs, (0.004, 0.0))
            action = distribution.sample()
            actions.append(action)
            logprobs.append(distribution.log_prob(action))
            next_obs, reward = env.step(action)
            rewards.append(reward)
        b_obs, b_actions = torch.cat(obs), torch.cat(actions)
        b_logprobs, b_returns = torch.cat(logprobs), torch.cat(rewards)
    for _ in range(2):
        order = torch.randperm(len(b_obs))
        for start in range(0, len(b_obs), 8):
            chosen = order[start : start + 8]
            with truth("forward"):
                distribution, value = agent(b_obs[chosen], (0.015, 0.025))
            ratio = (distribution.log_prob(b_actions[chosen]) - b_logprobs[chosen]).exp()
            advantage = b_returns[chosen] - value.detach().view(-1)
            policy_loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2)).mean()
            value_loss = 0.5 * (value.view(-1) - b_returns[chosen]).pow(2).mean()
            loss = policy_loss - 0.01 * distribution.entropy().mean() + 0.5 * value_loss
            optimizer.zero_grad()
            with truth("backward"):
                loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            with truth("optimizer"):
                optimizer.step()
            truth.step()
    print(update, f"{loss.item():.6f}")
truth.inspect(agent)
