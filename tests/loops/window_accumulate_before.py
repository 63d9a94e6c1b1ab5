"""window_accumulate.py before Stepfast. A step's loss is the mean of its window, as run.log has it."""

import math

import torch
from result import show
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(4)
loader = DataLoader(TensorDataset(torch.randn(82, 5), torch.randn(82, 1)), batch_size=4, shuffle=True)
model = nn.Sequential(nn.Linear(5, 12), nn.GELU(), nn.Dropout(0.1), nn.Linear(12, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

losses = []
for _ in range(4):
    window = []
    for i, (x, y) in enumerate(loader):
        size = min(8, len(loader) - i // 8 * 8)
        loss = nn.functional.mse_loss(model(x), y)
        (loss / size).backward()
        window.append(loss.item())
        if len(window) == size:
            optimizer.step()
            optimizer.zero_grad()
            losses.append(math.fsum(window) / size)
            window = []
    drawn = torch.rand(())
show(model.state_dict(), losses)
