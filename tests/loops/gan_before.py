"""gan.py before Stepfast."""

import torch
from result import show
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(6)
loader = DataLoader(TensorDataset(torch.randn(100, 4) * 2 + 1), batch_size=8, shuffle=True, drop_last=True)
generator = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 4))
critic = nn.Sequential(nn.Linear(4, 12), nn.LeakyReLU(), nn.Dropout(0.2), nn.Linear(12, 1))
generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
critic_optimizer = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
critic_optimizer.param_groups[0]["warmup"] = (4, 1e-2)
critic_optimizer.param_groups[0]["samples"] = 0

losses = []
for _ in range(2):
    for (real,) in loader:
        group = critic_optimizer.param_groups[0]
        group["samples"] += len(real)
        steps, peak = group["warmup"]
        group["lr"] = peak * min(1.0, group["samples"] / (8 * steps)) * 0.95 ** (group["samples"] // 64)
        fake = generator(torch.randn(len(real), 3))
        critic_loss = critic(fake.detach()).mean() - critic(real).mean()
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()
        loss = -critic(fake).mean()
        generator_optimizer.zero_grad()
        loss.backward()
        generator_optimizer.step()
        losses.append(loss.item())
    drawn = torch.rand(())
show({**generator.state_dict(prefix="g."), **critic.state_dict(prefix="c.")}, losses)
