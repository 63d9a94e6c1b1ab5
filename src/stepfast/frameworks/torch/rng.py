"""Random generators as plain values: the global ones together, and single objects. Bit exact both ways.

Values are dict, str, int, float, bytes, tuple and None only, so that the codec stores them as they are. Which
generators belong to a run, and when they are put back, is not decided here.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from typing import Any

import torch
import xxhash

from stepfast.core.errors import StateMismatch

PYTHON_WORDS = 625
_PYTHON_LAYOUT = struct.Struct(f"<{PYTHON_WORDS}I")


def capture() -> dict[str, object]:
    """The global generators of Python, NumPy (where imported), torch's CPU and each CUDA device in use."""
    state = capture_cpu()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = tuple(_tensor_bytes(torch.cuda.get_rng_state(i)) for i in range(torch.cuda.device_count()))
    return state


def capture_cpu() -> dict[str, object]:
    state: dict[str, object] = {
        "python": _python_state(random),
        "torch": _tensor_bytes(torch.default_generator.get_state()),
    }
    if (numpy := sys.modules.get("numpy")) is not None:
        state["numpy"] = _numpy_global.capture(numpy)
    return state


def restore(state: dict[str, Any]) -> None:
    """Put the global generators back. A generator that `state` does not hold keeps what it has."""
    if "cuda" in state:
        _restore_cuda(state["cuda"])
    _set_python_state(random, state["python"])
    torch.default_generator.set_state(_tensor(state["torch"]))
    if "numpy" in state:
        import numpy as np

        np.random.set_state(_thawed(state["numpy"]))
        _numpy_global.forget()


def digest(state: object) -> str:
    """xxh3_128 of captured values; equal for equal values only."""
    hasher = xxhash.xxh3_128()
    _feed(hasher, state)
    return hasher.hexdigest()


def is_generator(value: object) -> bool:
    return _kind(value) is not None


def capture_generator(generator: Any) -> dict[str, object]:
    """The state of a torch.Generator, random.Random, numpy Generator or numpy RandomState."""
    match kind := _kind(generator):
        case "torch":
            device = str(generator.device)
            return {"kind": kind, "device": device, "state": _tensor_bytes(generator.get_state())}
        case "python":
            return {"kind": kind, "state": _python_state(generator)}
        case "numpy":
            return {"kind": kind, "state": _plain(generator.bit_generator.state)}
        case "numpy-legacy":
            return {"kind": kind, "state": _plain(generator.get_state(legacy=False))}
    raise TypeError(f"{type(generator).__qualname__} is no random generator")


def restore_generator(generator: Any, state: Any) -> None:
    """Bring `generator` to a captured state. Raises StateMismatch when it is of another kind."""
    kind = _kind(generator)
    if kind is None:
        raise TypeError(f"{type(generator).__qualname__} is no random generator")
    stored, live = _described(state), _described_live(kind, generator)
    if stored != live:
        raise StateMismatch(
            f"the checkpoint holds a random generator of kind {stored}, the script now makes a {live}",
            hint="make the same kind of generator as when the checkpoint was written",
        )
    match kind:
        case "torch":
            generator.set_state(_tensor(state["state"]))
        case "python":
            _set_python_state(generator, state["state"])
        case "numpy":
            generator.bit_generator.state = _thawed(state["state"])
        case "numpy-legacy":
            generator.set_state(_thawed(state["state"]))


def _kind(value: object) -> str | None:
    if isinstance(value, torch.Generator):
        return "torch"
    if isinstance(value, random.Random):
        # SystemRandom has no state, and a subclass with its own source of bits has a state of its own.
        twister = type(value).getstate is random.Random.getstate and type(value).random is random.Random.random
        return "python" if twister else None
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        if isinstance(value, numpy.Generator):
            return "numpy"
        if isinstance(value, numpy.RandomState):
            return "numpy-legacy"
    return None


def _described(state: Any) -> str:
    inner = state["state"]
    if state["kind"] == "torch":
        return f"torch ({state['device']})"
    return f"{state['kind']} ({inner['bit_generator']})" if state["kind"].startswith("numpy") else str(state["kind"])


def _described_live(kind: str, generator: Any) -> str:
    if kind == "torch":
        return f"torch ({generator.device})"
    if kind == "numpy":
        return f"numpy ({generator.bit_generator.state['bit_generator']})"
    if kind == "numpy-legacy":
        return f"numpy-legacy ({generator.get_state(legacy=False)['bit_generator']})"
    return kind


class _NumpyGlobal:
    """NumPy's own reading of its global generator takes 24 us, so an unmoved one is known by its raw memory.

    The raw memory leaves out the half of a pair of normal draws that waits in `gauss`: a state that holds one
    can be used up without the memory moving, so such a state is never taken from here.
    """

    def __init__(self) -> None:
        self._address = 0
        self._raw = b""
        self._state: object = None

    def capture(self, numpy: Any) -> object:
        source = numpy.random.get_bit_generator()
        if type(source) is not numpy.random.MT19937:
            return _plain(numpy.random.get_state(legacy=False))
        address = source.ctypes.state_address
        raw = ctypes.string_at(address, _MT19937_BYTES)
        if raw != self._raw or address != self._address:
            state = numpy.random.get_state(legacy=False)
            if state["has_gauss"]:
                self._raw = b""
                return _plain(state)
            self._address, self._raw, self._state = address, raw, _plain(state)
        return self._state

    def forget(self) -> None:
        """After a state was put back its waiting draw may differ from the one seen with the same memory."""
        self._raw = b""


_MT19937_BYTES = 624 * 4 + 4
_numpy_global = _NumpyGlobal()


def _python_state(generator: Any) -> tuple[int, bytes, float | None]:
    version, words, gauss = generator.getstate()
    return version, _PYTHON_LAYOUT.pack(*words), gauss


def _set_python_state(generator: Any, state: Any) -> None:
    version, words, gauss = state
    generator.setstate((version, _PYTHON_LAYOUT.unpack(words), gauss))


def _tensor_bytes(state: torch.Tensor) -> bytes:
    return state.numpy().tobytes()


def _tensor(raw: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8)


def _restore_cuda(states: Any) -> None:
    count = torch.cuda.device_count()
    if count < len(states):
        raise StateMismatch(
            f"the checkpoint holds the random state of {len(states)} CUDA devices, this process sees {count}",
            hint="resume on a machine with as many CUDA devices, or make as many visible",
        )
    for device, raw in enumerate(states):
        torch.cuda.set_rng_state(_tensor(raw), device)


def _plain(value: Any) -> Any:
    """NumPy's state dicts with each array as ('array', dtype, bytes). Their arrays have one dimension."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if hasattr(value, "tobytes"):
        return ("array", value.dtype.str, value.tobytes()) if value.ndim else value.item()
    return value


def _thawed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _thawed(item) for key, item in value.items()}
    if isinstance(value, tuple):
        import numpy as np

        _, dtype, raw = value
        return np.frombuffer(raw, dtype=dtype).copy()
    return value


def _feed(hasher: xxhash.xxh3_128, value: Any) -> None:
    """Each value with its type and length, so that no two nestings give the same bytes."""
    if isinstance(value, dict):
        hasher.update(b"d%d;" % len(value))
        for key in sorted(value):
            _feed(hasher, key)
            _feed(hasher, value[key])
    elif isinstance(value, (tuple, list)):
        hasher.update(b"t%d;" % len(value))
        for item in value:
            _feed(hasher, item)
    elif isinstance(value, bytes):
        hasher.update(b"b%d;" % len(value))
        hasher.update(value)
    elif isinstance(value, float):
        hasher.update(b"f" + struct.pack("<d", value))
    else:
        text = f"{type(value).__name__}:{value!r}".encode()
        hasher.update(b"s%d;" % len(text))
        hasher.update(text)
