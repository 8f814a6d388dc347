"""Kintsugi mends broken training jobs."""
