"""The process beside the trainer: owns the lock, the slots and all writing. Runs no code of the user."""
