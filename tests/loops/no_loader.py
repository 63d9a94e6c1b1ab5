"""No loader: batches are drawn from the global generator, the next one before the step in hand has ended."""

import sys

import torch
from result import show
from torch import nn

import stepfast

torch.manual_seed(5)
tokens = torch.randint(0, 50, (4000,))
model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 50))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)


def get_batch():
    starts = torch.randint(0, len(tokens) - 9, (6,))
    return torch.stack([tokens[i : i + 8] for i in starts]), torch.stack([tokens[i + 1 : i + 9] for i in starts])


path = None if sys.argv[1] == "none" else sys.argv[1]
run = stepfast.Run(path, model=model, optimizer=optimizer, data=None, steps=30, save_steps=7)
if run.receipt is not None:  # a look at what was resumed: it draws and leaves eval() behind, and must not be felt
    model.eval()
    print("a sample:", model(tokens[torch.randint(0, len(tokens), (8,))]).argmax(1).tolist())
for step in run:
    if "batch" not in run.state:
        run.state["batch"] = get_batch()
    x, y = run.state["batch"]
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    run.state["batch"] = get_batch()  # the next one, while a device would still be computing
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    run.log(loss=loss, seen=x.sum(), step=step)
show(model.state_dict(), run.history["loss"])
