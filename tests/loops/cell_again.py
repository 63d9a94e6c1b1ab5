"""A notebook whose cell is interrupted in the middle of the second epoch and run again, then once more."""

import sys

import torch
from result import show
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stepfast


def cell(stop_at=None):
    torch.manual_seed(9)
    loader = DataLoader(TensorDataset(torch.randn(66, 4), torch.randn(66, 1)), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    run = stepfast.Run(sys.argv[1], model=model, optimizer=optimizer, data=loader, epochs=3, save_steps=4)
    print("begins at", run.step)
    for epoch in run.epochs():
        for x, y in epoch:
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            if run.step == stop_at:
                return run  # still open, as a cell leaves it; the generators are in nobody's hand
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=loss)
    show(model.state_dict(), run.history["loss"])
    return run


stop_at = [None if text == "end" else int(text) for text in sys.argv[2:]]
runs = [cell(stop) for stop in stop_at]
