"""One pipeline: layers to stages, what it takes, and what it takes at least."""
