"""State of every type, compared bit for bit."""

import torch
from hypothesis import strategies as st

from kintsugi.core.decision import StateKind, Transfer

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip
SHAPES = [(), (1,), (0,), (3, 0), (5,), (2, 3), (3, 1, 2)]


def tensor_of(dtype: torch.dtype, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Random bits, so that signalling values and negative zeros are among them."""
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    limit = 2 if dtype is torch.bool else 256
    bits = torch.randint(0, limit, (num_bytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return bits.view(dtype).reshape(shape)


def bits_of(value: torch.Tensor) -> bytes:
    return value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same_bits(one, other):
    assert list(one) == list(other)
    for key, value in one.items():
        if not isinstance(value, torch.Tensor):
            assert (other[key], type(other[key])) == (value, type(value))
            continue
        assert other[key].dtype == value.dtype
        assert other[key].shape == value.shape
        assert bits_of(other[key]) == bits_of(value)


TENSORS = st.builds(tensor_of, st.sampled_from(DTYPES), st.sampled_from(SHAPES), st.integers(0, 99))
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
ENTRIES = st.dictionaries(st.tuples(st.text(max_size=5), st.text(max_size=5)), TENSORS | PLAIN, max_size=6)


def transfer(source: str, num_bytes: int, target: str = "t", layer: int = 0, kind: StateKind = StateKind.PARAMETER) -> Transfer:
    return Transfer(source=source, target=target, layer=layer, kind=kind, num_bytes=num_bytes)


VALUES = {("p", "k"): torch.arange(40.0)}
NUM_BYTES = 160
"""Of them."""
