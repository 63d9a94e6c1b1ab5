"""window_by_hand.py before Stepfast."""

import torch
from result import show
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
loader = DataLoader(TensorDataset(torch.randn(86, 5), torch.randn(86, 1)), batch_size=4, shuffle=True)
model = nn.Sequential(nn.Linear(5, 12), nn.GELU(), nn.Dropout(0.1), nn.Linear(12, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)

losses = []
for _ in range(2):
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), y)
        (loss / 8).backward()
        if i % 8 == 7:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
show(model.state_dict(), losses)
