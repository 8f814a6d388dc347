"""State on disk: written beside the training, found again whole."""
