"""What should run now? Decides."""
