"""Layers, links and recoveries of this machine, measured for a profile."""
