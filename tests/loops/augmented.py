"""Random augmentation in the dataset from torch, random and NumPy, in two persistent workers or in none."""

import random
import sys

import numpy as np
import torch
from result import show
from torch import nn
from torch.utils.data import DataLoader, Dataset

import stepfast


class Augmented(Dataset):
    def __init__(self):
        self.samples = torch.randn(92, 6)

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        sample = self.samples[index]
        if random.random() < 0.5:
            sample = sample.flip(0)
        sample = sample + 0.1 * torch.randn(6) + 0.1 * torch.from_numpy(np.random.randn(6)).float()
        return sample, sample[:3].argmax()


def main(path, workers):
    torch.manual_seed(2)
    random.seed(2)
    np.random.seed(2)
    loader = DataLoader(Augmented(), batch_size=8, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    run = stepfast.Run(path, model=model, optimizer=optimizer, data=loader, epochs=2, save_steps=5)
    for epoch in run.epochs():
        for x, y in epoch:
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=loss, seen=x.sum())
        run.log(epoch_loss=epoch.mean("loss"), noise=np.random.rand() + random.random())
    show(model.state_dict(), run.history["loss"])


if __name__ == "__main__":
    main(None if sys.argv[1] == "none" else sys.argv[1], int(sys.argv[2]))
