"""A PyTorch loop: batch norm, dropout, a schedule, an evaluation after each epoch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stepfast

torch.manual_seed(0)

features = torch.randn(4096, 32)
labels = (features[:, :4].sum(dim=1) > 0).long()
train = TensorDataset(features[:3584], labels[:3584])
loader = DataLoader(train, batch_size=32, shuffle=True)

model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3 * len(loader))


def accuracy() -> float:
    model.eval()
    with torch.no_grad():
        return (model(features[3584:]).argmax(dim=1) == labels[3584:]).float().mean().item()


run = stepfast.Run("runs/try", model=model, optimizer=optimizer, scheduler=scheduler, data=loader, epochs=3)
for epoch in run.epochs():
    model.train()
    for inputs, targets in epoch:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        run.log(loss=loss)
    print(f"accuracy {accuracy():.4f}")
