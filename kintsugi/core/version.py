"""The version of Kintsugi, which every stored decision names."""

__version__ = "0.1.0"
