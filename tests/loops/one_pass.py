"""A dataset that writes every sample it opens into a file beside the run."""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import stepfast

path, workers = Path(sys.argv[1]), int(sys.argv[2])


class Counted(Dataset):
    def __len__(self):
        return 60

    def __getitem__(self, index):
        with open(path.with_suffix(".opened"), "a") as file:
            file.write(f"{index}\n")
        return torch.full((3,), float(index)), index


torch.manual_seed(8)
loader = DataLoader(Counted(), batch_size=4, shuffle=True, num_workers=workers)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
run = stepfast.Run(path, model=model, optimizer=optimizer, data=loader, epochs=2, save_steps=5)
for epoch in run.epochs():
    for x, indices in epoch:
        with open(path.with_suffix(".trained"), "a") as file:
            file.write("".join(f"{run.step} {index}\n" for index in indices.tolist()))
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=loss)
print("result", run.step)
