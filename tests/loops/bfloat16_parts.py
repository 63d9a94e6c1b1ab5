"""Model, optimizer and average of the loop bfloat16.py."""

import torch
from torch import nn


class Tied(nn.Module):
    """Convolution with channels_last weights; two linear layers share one weight."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(4, 8, 3, padding=1)
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        x = self.convolution(x).relu().mean((2, 3))
        return self.second(self.dropout(self.first(x).relu()))


class Float32Adam(torch.optim.Optimizer):
    """Moments in float32 beside weights in bfloat16."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["step"] = 0
                    state["first"] = torch.zeros_like(parameter, dtype=torch.float32)
                    state["second"] = torch.zeros_like(parameter, dtype=torch.float32)
                state["step"] += 1
                gradient = parameter.grad.float()
                state["first"].lerp_(gradient, 0.1)
                state["second"].mul_(0.99).addcmul_(gradient, gradient, value=0.01)
                scale = (1 - 0.99 ** state["step"]) ** 0.5 / (1 - 0.9 ** state["step"])
                update = scale * state["first"] / (state["second"].sqrt() + 1e-8)
                parameter.add_(update.to(parameter.dtype), alpha=-group["lr"])


class Average:
    """An exponential moving average of the weights, in float32."""

    def __init__(self, model):
        self.weights = {name: p.detach().float() for name, p in model.named_parameters()}
        self.updates = 0

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        for name, parameter in model.named_parameters():
            self.weights[name].lerp_(parameter.float(), 0.1)

    def state_dict(self):
        return {"weights": self.weights, "updates": self.updates}

    def load_state_dict(self, state):
        self.weights, self.updates = state["weights"], state["updates"]
