"""The version of Kintsugi, which every stored decision names, and that of what its workers say to each other."""

__version__ = "0.1.0"

PROTOCOL = 8
"""Of the workers of an overlay or of a `SynchronizedOptimizer`: raised with whatever changes what travels between
them, or what they compute from it. Workers of different ones would compute nonsense together, and refuse each other. Workers of 1
do not tell it."""
