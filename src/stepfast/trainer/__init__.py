"""The process with the model and the loop. `Run` is trainer/run.py."""
