"""What torch.cuda says of the emulated device: its streams, its events, its memory and its name. Imported once torch is."""

import ctypes
import os
import time
from types import SimpleNamespace

import torch

NAME = "Emulated device"

_library = ctypes.CDLL(os.environ["EMULATED_CUDA"])
for _name in ("held_bytes", "most_bytes", "capacity_bytes", "current_stream", "new_stream"):
    getattr(_library, _name).restype = ctypes.c_int64
for _name in ("host_seconds", "device_seconds"):
    getattr(_library, _name).restype = ctypes.c_double
for _name in ("set_stream", "finish_stream"):
    getattr(_library, _name).argtypes = [ctypes.c_int64]
_library.keep_busy.argtypes = [ctypes.c_double]
_library.set_pace.argtypes = [ctypes.c_double] * 3

CYCLES_PER_SECOND = 2e9


class Pace:
    """Clocks of host and device that operations of the device move, and nothing else; until then the machine."""

    is_kept = False

    @classmethod
    def keep(cls, *, host_seconds, device_seconds, seconds_per_byte):
        """From now on every operation takes the host so long to give, and the device so long to do, with what goes into it."""
        cls.is_kept = True
        _library.set_pace(host_seconds, device_seconds, seconds_per_byte)

    @staticmethod
    def host_clock():
        return _library.host_seconds()

    @classmethod
    def device_clock(cls):
        return _library.device_seconds() if cls.is_kept else time.perf_counter()


class Stream(torch.Stream):
    """Copies that were put off in it are done when it is waited for."""

    def __new__(cls, *_, stream_id=None, **__):
        number = _library.new_stream() if stream_id is None else stream_id
        return super().__new__(cls, stream_id=number, device_index=0, device_type=1)

    def wait_event(self, event):
        event.synchronize()

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event


def current_stream(_=None):
    return Stream(stream_id=_library.current_stream())


class Event:
    """A moment of a stream; who waits for it, waits for all of the stream."""

    def __init__(self, enable_timing=False, **_):
        self._is_timed, self._recorded_at, self._stream = enable_timing, None, None

    def record(self, stream=None):
        self._stream = stream or current_stream()
        if self._is_timed and not Pace.is_kept:
            self._stream.synchronize()
        self._recorded_at = Pace.device_clock()

    def synchronize(self):
        if self._stream is not None:
            self._stream.synchronize()

    def wait(self, _=None):
        self.synchronize()

    def query(self):
        return True

    def elapsed_time(self, other):
        assert self._is_timed
        assert other._is_timed
        return max((other._recorded_at - self._recorded_at) * 1e3, 1e-6)


class StreamContext:
    """Operations go into a stream; into the same as before where it is None."""

    def __init__(self, stream):
        self._stream = stream

    def __enter__(self):
        self._before = _library.current_stream()
        if self._stream is not None:
            _library.set_stream(self._stream.stream_id)

    def __exit__(self, *_):
        _library.set_stream(self._before)


class OnDevice:
    """There is but one."""

    def __init__(self, _):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def answering(answer):
    """A function that answers so for every device; each its own, for torch._dynamo has a rule for each."""
    return lambda *_, **__: answer()


def nothing():
    pass


class Use:
    """Whether this process asked for the device, or one that it was forked from: then it cannot have it."""

    has_asked = False
    has_context = False
    is_lost = False


def asking(answer):
    """The same for a function of which the driver is asked."""

    def ask(*_, **__):
        Use.has_asked = True
        return answer()

    return ask


def begin_to_use(*_, **__):
    if Use.is_lost:
        raise RuntimeError(
            "Cannot re-initialize CUDA in forked subprocess: the process that it was forked from asked for the device"
        )
    Use.has_asked = Use.has_context = True


def using(answer):
    """The same for a function that puts the device in use."""

    def use(*_, **__):
        begin_to_use()
        return answer()

    return use


def note_fork():
    Use.is_lost, Use.has_context = Use.has_asked, False


def properties():
    return SimpleNamespace(
        uuid="emulated", name=NAME, total_memory=_library.capacity_bytes(), multi_processor_count=1, major=9, minor=0
    )


STREAMS = {
    "Stream": Stream,
    "Event": Event,
    "StreamContext": StreamContext,
    "stream": StreamContext,
    "current_stream": using(current_stream),
    "default_stream": using(lambda: Stream(stream_id=0)),
    "synchronize": using(_library.finish_streams),
    "_sleep": lambda cycles: _library.keep_busy(cycles / CYCLES_PER_SECOND if Pace.is_kept else 0.0),
    "is_current_stream_capturing": answering(lambda: False),
}
MEMORY = {
    "memory_allocated": answering(_library.held_bytes),
    "max_memory_allocated": answering(_library.most_bytes),
    "memory_reserved": answering(_library.held_bytes),
    "reset_peak_memory_stats": answering(_library.reset_most),
    "mem_get_info": using(lambda: (_library.capacity_bytes() - _library.held_bytes(), _library.capacity_bytes())),
    "empty_cache": answering(nothing),
}
PRESENCE = {
    "device": OnDevice,
    "is_available": asking(lambda: True),
    "is_initialized": answering(lambda: Use.has_context),
    "init": begin_to_use,
    "_lazy_init": begin_to_use,
    "_is_in_bad_fork": answering(lambda: Use.is_lost),
    "device_count": asking(lambda: 1),
    "current_device": using(lambda: 0),
    "set_device": answering(nothing),
    "get_device_name": using(lambda: NAME),
    "get_device_properties": using(properties),
    "get_device_capability": using(lambda: (9, 0)),
    "is_bf16_supported": answering(lambda: True),
}
RANDOMNESS = {  # the host draws
    "default_generators": (torch.default_generator,),
    "get_rng_state": using(torch.get_rng_state),
    "get_rng_state_all": using(lambda: [torch.get_rng_state()]),
    "set_rng_state": lambda state, _=None: torch.set_rng_state(state),
    "manual_seed": answering(nothing),
    "manual_seed_all": answering(nothing),
}


def install():
    """Give torch.cuda all of this; NCCL, where torch is built with it, has no device."""
    _library.take_over()
    os.register_at_fork(after_in_child=note_fork)
    for name, value in (STREAMS | MEMORY | PRESENCE | RANDOMNESS).items():
        setattr(torch.cuda, name, value)
    torch.version.cuda = "emulated"
    if torch.backends.cuda.is_built():
        torch.distributed.distributed_c10d._NCCL_AVAILABLE = False
        for kernels in ("cudnn", "flash", "mem_efficient"):  # of attention
            getattr(torch.backends.cuda, f"enable_{kernels}_sdp")(False)
