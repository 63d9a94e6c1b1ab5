"""The training that `stepfast demo` kills and resumes. An ordinary script: `python train.py RUN`."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stepfast

torch.manual_seed(0)
torch.set_num_threads(1)

features = torch.randn(20_305, 64)
noise = torch.randn(len(features))
labels = (features[:, :8].square().sum(dim=1) + noise > 8).long()
loader = DataLoader(TensorDataset(features, labels), batch_size=16, shuffle=True)  # 1,270 batches

model = nn.Sequential(
    nn.Linear(64, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 2)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=len(loader))

run = stepfast.Run(
    sys.argv[1],
    model=model,
    optimizer=optimizer,
    scheduler=scheduler,
    data=loader,
    epochs=1,
    seed=0,
    save_steps=500,
)
for epoch in run.epochs():
    model.train()
    for inputs, targets in epoch:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        run.log(loss=loss)
