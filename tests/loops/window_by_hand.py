"""A window of 8 written by hand: every micro-batch is a step, gradients wait at most boundaries, also over epochs."""

import sys

import torch
from result import show
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stepfast

torch.manual_seed(3)
loader = DataLoader(TensorDataset(torch.randn(86, 5), torch.randn(86, 1)), batch_size=4, shuffle=True)
model = nn.Sequential(nn.Linear(5, 12), nn.GELU(), nn.Dropout(0.1), nn.Linear(12, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)

path = None if sys.argv[1] == "none" else sys.argv[1]
run = stepfast.Run(path, model=model, optimizer=optimizer, data=loader, epochs=2, save_steps=5)
for epoch in run.epochs():
    for i, (x, y) in epoch.enumerate():
        loss = nn.functional.mse_loss(model(x), y)
        (loss / 8).backward()
        if i % 8 == 7:
            optimizer.step()
            optimizer.zero_grad()
        run.log(loss=loss, seen=x.sum(), index=i)
show(model.state_dict(), run.history["loss"])
