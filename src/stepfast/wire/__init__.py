"""Messages between trainer, agent and commands, and their channels. Not what they lead to."""
