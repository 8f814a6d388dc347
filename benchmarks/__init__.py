"""What is fast, measured: each module prints ours, the figure asked for and, where there is one, the baseline."""
