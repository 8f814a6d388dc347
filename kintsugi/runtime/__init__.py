"""The trainer's side: agent, workers, executor (torch)."""
