"""Decisions made when they are asked for, and ahead of it."""
