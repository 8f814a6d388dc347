"""Whether a CUDA device is at hand; the tests of this package say so where none is."""

import pytest
import torch

needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="no CUDA device is found" if torch.version.cuda else "this build of torch is for CPUs alone",
)
DEVICE = "cuda:0"
