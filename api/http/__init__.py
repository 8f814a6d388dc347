"""The manners of HTTP: bodies, conditions, cursors, and how all of it is described."""
