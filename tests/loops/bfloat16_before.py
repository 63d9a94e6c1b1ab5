"""bfloat16.py before Stepfast."""

import math

import torch
from bfloat16_parts import Average, Float32Adam, Tied
from result import show
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)
inputs, targets = torch.randn(60, 4, 5, 5).bfloat16(), torch.randint(0, 8, (60,))
loader = DataLoader(TensorDataset(inputs, targets), batch_size=8, shuffle=True)
model = Tied().bfloat16().to(memory_format=torch.channels_last)
optimizer = Float32Adam(model.parameters(), lr=0.02)
average = Average(model)

losses = []
best, bad = math.inf, 0
for _ in range(8):
    model.train()
    for x, y in loader:
        x = x.to(memory_format=torch.channels_last)
        loss = nn.functional.cross_entropy(model(x).float(), y)
        loss.backward()
        optimizer.step()
        average.update(model)
        optimizer.zero_grad()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        drawn = torch.randn(16, 4, 5, 5).bfloat16()
        score = float(nn.functional.cross_entropy(model(drawn).float(), targets[:16]))
    bad = 0 if score < best else bad + 1
    best = min(score, best)
    if bad == 2:
        break
show({**model.state_dict(), **average.weights}, losses)
