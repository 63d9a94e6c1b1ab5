"""Slots: the shared memory a snapshot lies in, made by the agent and filled by the trainer. No files."""
