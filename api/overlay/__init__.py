"""The scheduler of overlays: their logs, what is heard of their workers, and who waits for the next generation."""
