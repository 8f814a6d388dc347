"""What everything that reports on many runs needs: intervals of confidence, and pictures."""
