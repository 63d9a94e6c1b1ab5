"""bfloat16 weights, float32 moments, channels_last, tied weights, an average in extra, early stopping."""

import math
import sys

import torch
from bfloat16_parts import Average, Float32Adam, Tied
from result import show
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stepfast

torch.manual_seed(7)
inputs, targets = torch.randn(60, 4, 5, 5).bfloat16(), torch.randint(0, 8, (60,))
loader = DataLoader(TensorDataset(inputs, targets), batch_size=8, shuffle=True)
model = Tied().bfloat16().to(memory_format=torch.channels_last)
optimizer = Float32Adam(model.parameters(), lr=0.02)
average = Average(model)

path = None if sys.argv[1] == "none" else sys.argv[1]
run = stepfast.Run(
    path, model=model, optimizer=optimizer, data=loader, extra={"average": average}, epochs=8, save_steps=5
)
run.state.setdefault("best", math.inf)
for epoch in run.epochs():
    model.train()
    for x, y in epoch:
        x = x.to(memory_format=torch.channels_last)
        loss = nn.functional.cross_entropy(model(x).float(), y)
        loss.backward()
        optimizer.step()
        average.update(model)
        optimizer.zero_grad()
        run.log(loss=loss, seen=x.float().sum())
    model.eval()
    with torch.no_grad():
        drawn = torch.randn(16, 4, 5, 5).bfloat16()
        score = float(nn.functional.cross_entropy(model(drawn).float(), targets[:16]))
    run.log(score=score)
    run.state["bad"] = 0 if score < run.state["best"] else run.state.get("bad", 0) + 1
    run.state["best"] = min(score, run.state["best"])
    if run.state["bad"] == 2:
        run.finish("early stop")
show({**model.state_dict(), **average.weights}, run.history["loss"])
