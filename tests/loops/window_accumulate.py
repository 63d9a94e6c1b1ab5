"""accumulate=8 with a short last window: 21 batches are windows of 8, 8 and 5."""

import sys

import torch
from result import show
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stepfast

torch.manual_seed(4)
loader = DataLoader(TensorDataset(torch.randn(82, 5), torch.randn(82, 1)), batch_size=4, shuffle=True)
model = nn.Sequential(nn.Linear(5, 12), nn.GELU(), nn.Dropout(0.1), nn.Linear(12, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

path = None if sys.argv[1] == "none" else sys.argv[1]
run = stepfast.Run(path, model=model, optimizer=optimizer, data=loader, epochs=4, accumulate=8, save_steps=2)
for epoch in run.epochs():
    for x, y in epoch:
        loss = nn.functional.mse_loss(model(x), y)
        (loss / run.window_size).backward()
        run.log(loss=loss, seen=x.sum())
        if run.window_end:
            optimizer.step()
            optimizer.zero_grad()
    run.log(drawn=torch.rand(()))
show(model.state_dict(), run.history["loss"])
