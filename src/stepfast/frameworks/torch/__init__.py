"""PyTorch: its leaves, its random numbers, its loaders."""
