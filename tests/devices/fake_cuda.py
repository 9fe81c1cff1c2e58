"""A stand-in for the few calls of torch that a transfer to CUDA makes, with a device that is as late as it may be.

Streams are queues of work that nobody has done yet. A copy with ``non_blocking=True`` and a pinned source is put
into the current stream and reads its source when the stream gets there, as the real one does: whoever writes to
the source before that changes what arrives. Work is done only when something waits for it: an event's
``synchronize``, or the device itself at a time that the test chooses (`Device.run`).

Time is simulated. A piece of work has a duration, 0 unless a test says otherwise. It begins when the host has put
it into the stream and the stream has done the work before it. A host thread that waits for an event stands at the
time of that event afterwards. `Device.spans` is the resulting timeline.

Tensors "on the device" are tensors of a subclass, in this process's memory. Everything else is torch's own.
"""

import threading
from contextlib import contextmanager

import torch


class Device:
    """All streams of one device, and what has happened on it, in order."""

    def __init__(self):
        self.streams = []
        self.log = []
        self.used_on = {}
        self.pinned_bytes = 0
        #: how long each copy takes
        self.copy_s = 0.0
        #: (stream, kind, begin, end) of all work that takes time
        self.spans = []
        self._clocks = {}
        self._loop = threading.get_ident()
        self._lock = threading.Lock()

    def host_time(self):
        """Where this thread stands. The transfer worker is never behind the training loop, which it serves."""
        return max(self._clocks.get(thread, 0.0) for thread in (threading.get_ident(), self._loop))

    def host_waited(self, until):
        self._clocks[threading.get_ident()] = max(self.host_time(), until)

    def run(self, steps=None):
        """Do up to `steps` pieces of work, of whichever streams can go on: the training loop's first."""
        done = 0
        while steps is None or done < steps:
            with self._lock:
                stream = next((one for one in self.streams if one.can_go_on()), None)
                if stream is None:
                    return done
                stream.step()
            done += 1
        return done


class Event:
    def __init__(self, stream):
        self.stream = stream
        self.happened = False
        self.at = 0.0

    def query(self):
        return self.happened

    def synchronize(self):
        self.stream.device.log.append(("host waits", threading.current_thread().name))
        while not self.happened:
            assert self.stream.device.run(1), "the host waits for ever"
        self.stream.device.host_waited(self.at)


class Stream:
    def __init__(self, device, name):
        self.device = device
        self.name = name
        self.work = []
        #: when the work that it has done so far ends
        self.until = 0.0
        device.streams.append(self)

    def put(self, kind, what, takes=0.0):
        self.work.append((kind, what, takes, self.device.host_time()))

    def record_event(self):
        event = Event(self)
        self.put("event", event)
        return event

    def wait_event(self, event):
        self.put("wait", event)

    def can_go_on(self):
        return bool(self.work) and not (self.work[0][0] == "wait" and not self.work[0][1].happened)

    def step(self):
        kind, what, takes, since = self.work.pop(0)
        begin = max(self.until, since)
        self.until = begin + takes
        if kind == "event":
            what.at = self.until
            what.happened = True
        elif kind == "wait":
            self.until = max(self.until, what.at)
        else:
            what()
        if takes:
            self.device.spans.append((self.name, kind, begin, self.until))
        self.device.log.append((self.name, kind))


class OnDevice(torch.Tensor):
    """A tensor on the device."""

    fake = None

    @property
    def is_cuda(self):
        return True

    def copy_(self, source, non_blocking=False):
        assert non_blocking, "a blocking copy holds up the host"
        assert self.fake.is_pinned(source), "a copy from memory that is not pinned holds up the host"
        assert source.stride() == self.stride(), "a copy that is not of one piece holds up the host"
        plain = self.as_subclass(torch.Tensor)
        self.fake.cuda.current_stream().put("copy", lambda: plain.copy_(source), self.fake.device_state.copy_s)
        return self

    def record_stream(self, stream):
        self.fake.device_state.used_on.setdefault(self.data_ptr(), []).append(stream)


class Cuda:
    """What is used of `torch.cuda`."""

    def __init__(self, device):
        self._device = device
        self._default = Stream(device, "default")
        self._local = threading.local()

    def is_available(self):
        return True

    def device_count(self):
        return 2

    def current_device(self):
        return getattr(self._local, "index", 0)

    def set_device(self, index):
        self._local.index = index

    def Stream(self, device=None):
        return Stream(self._device, f"side {device}")

    def current_stream(self, device=None):
        return getattr(self._local, "stream", self._default)

    def set_stream(self, stream):
        self._local.stream = stream

    @contextmanager
    def stream(self, stream):
        before = self.current_stream()
        self.set_stream(stream)
        try:
            yield
        finally:
            self.set_stream(before)


class FakeTorch:
    """torch, but for what is on the device and what is pinned."""

    def __init__(self):
        self.device_state = Device()
        self.cuda = Cuda(self.device_state)
        self.tensor_type = type("OnThisDevice", (OnDevice,), {"fake": self})
        self._pinned = set()
        self._kept = []

    def __getattr__(self, name):
        return getattr(torch, name)

    def device(self, *args):
        return torch.device(*args)

    def empty(self, *shape, dtype=None, pin_memory=False):
        made = torch.empty(*shape, dtype=dtype)
        if pin_memory:
            self._kept.append(made)  # so that no other memory gets its address
            self._pinned.add(made.untyped_storage().data_ptr())
            self.device_state.pinned_bytes += made.nbytes
        return made

    def empty_like(self, source, *, device):
        return torch.zeros_like(source).as_subclass(self.tensor_type)

    def is_pinned(self, tensor):
        return tensor.untyped_storage().data_ptr() in self._pinned
