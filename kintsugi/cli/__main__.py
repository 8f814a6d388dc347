"""`python -m kintsugi.cli`, the same as `kintsugi`."""

from kintsugi.cli import main

main()
