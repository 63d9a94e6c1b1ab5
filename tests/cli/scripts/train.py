"""A small training with a short tail: `train.py RUN EPOCHS [SAVE_STEPS]`."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stepfast

torch.manual_seed(0)
features = torch.randn(100, 8)
loader = DataLoader(TensorDataset(features, features.sum(dim=1, keepdim=True)), batch_size=10, shuffle=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
run = stepfast.Run(
    sys.argv[1], model=model, optimizer=optimizer, data=loader, epochs=int(sys.argv[2]), seed=0, save_steps=4
)
for epoch in run.epochs():
    for inputs, targets in epoch:
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss)
        if run.step == 5:
            run.save("early")
