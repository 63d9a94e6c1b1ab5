"""classifier.py before Stepfast."""

import torch
from result import show
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
inputs, targets = torch.randn(203, 8), torch.randint(0, 3, (203,))
loader = DataLoader(TensorDataset(inputs, targets), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2 * len(loader))

losses = []
for _ in range(2):
    model.train()
    print("three of them:", torch.randperm(len(inputs))[:3].tolist())  # a resume inside the epoch draws, too
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        picked = torch.randperm(len(inputs))[:64]
        accuracy = (model(inputs[picked]).argmax(1) == targets[picked]).float().mean()
show(model.state_dict(), losses)
