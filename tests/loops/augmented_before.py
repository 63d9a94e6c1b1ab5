"""augmented.py before Stepfast, without workers: with them the draws are those of a stream per batch."""

import random

import numpy as np
import torch
from result import show
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Augmented(Dataset):
    def __init__(self):
        self.samples = torch.randn(92, 6)

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        sample = self.samples[index]
        if random.random() < 0.5:
            sample = sample.flip(0)
        sample = sample + 0.1 * torch.randn(6) + 0.1 * torch.from_numpy(np.random.randn(6)).float()
        return sample, sample[:3].argmax()


torch.manual_seed(2)
random.seed(2)
np.random.seed(2)
loader = DataLoader(Augmented(), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

losses = []
for _ in range(2):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    noise = np.random.rand() + random.random()
show(model.state_dict(), losses)
