"""A training that goes on until it is stopped: `endless.py RUN`. Says when it is in its loop."""

import sys

import torch
from torch import nn

import stepfast

torch.manual_seed(0)
model = nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
run = stepfast.Run(sys.argv[1], model=model, optimizer=optimizer, steps=1_000_000_000, save_steps=0)
for step in run:
    loss = model(torch.ones(256, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    run.log(loss=loss)
    if step == 2:
        print("in the loop", flush=True)
