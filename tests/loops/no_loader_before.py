"""no_loader.py before Stepfast."""

import torch
from result import show
from torch import nn

torch.manual_seed(5)
tokens = torch.randint(0, 50, (4000,))
model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 50))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def get_batch():
    starts = torch.randint(0, len(tokens) - 9, (6,))
    return torch.stack([tokens[i : i + 8] for i in starts]), torch.stack([tokens[i + 1 : i + 9] for i in starts])


losses = []
batch = get_batch()
for _ in range(30):
    x, y = batch
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    batch = get_batch()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    losses.append(loss.item())
show(model.state_dict(), losses)
