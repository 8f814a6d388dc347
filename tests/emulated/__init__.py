"""A CUDA device that is emulated in the host's memory, for machines without one.

Builds of torch without CUDA know device "cuda" by name alone, and builds with it find none. `device.cpp` gives both one, with the
host's kernels in the place of CUDA's, and `site/` gives every Python process that is started with `library.environment()` what
torch.cuda says of it. `tests/gpu` then run on it. It is stricter about copies that nobody waits for and about where tensors lie
than a fast device happens to be, but it is none: it says nothing about speed, drivers, NCCL, the numbers of CUDA's kernels, or
kernels that are still under way.
"""
