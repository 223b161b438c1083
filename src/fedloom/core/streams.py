"""Random streams: every generator is derived from (seed, purpose, round, client).

Nothing draws from a global generator, so no result depends on the order in which clients, engines, runs or tests
happen to execute. Equal keys give equal streams, on every machine and in every process."""

import contextlib
import hashlib
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


def generator_states(device: torch.device | None = None) -> tuple[bytes, int, tuple[int, bytes]]:
    """Return the states of the global generators of torch (with a CUDA device's), Python and NumPy, to compare them."""
    _, key, position, *_ = np.random.get_state()  # noqa: NPY002
    numpy_state = int(position), np.asarray(key).tobytes()
    torch_states = b"".join(generator.get_state().numpy().tobytes() for generator in _global_generators(device))
    return torch_states, hash(random.getstate()), numpy_state


def remember_draws(device: torch.device | None = None) -> Callable[[], None]:
    """Return a function that resets the global generators, and that of a CUDA device, to their present states."""
    generators = _global_generators(device)
    states = _states_of(generators)
    return lambda: _set_states(generators, states)


@dataclass(frozen=True, slots=True)
class Streams:
    """The root of all randomness of one run. seed: any integer."""

    seed: int

    def key(self, purpose: str, round_: int = 0, client: int = -1) -> int:
        """Return the 128-bit integer from which the stream starts, for a `purpose` such as "shuffle", a round from 1 on
        (0 is before the first) and a client's id (-1 is the server)."""
        # 63 bits of the seed, so that any integer fits into a signed word.
        packed = struct.pack("<qqq", self.seed & 0x7FFFFFFFFFFFFFFF, round_, client) + purpose.encode()
        return int.from_bytes(hashlib.blake2b(packed, digest_size=16).digest(), "little")

    def numpy(self, purpose: str, round_: int = 0, client: int = -1) -> np.random.Generator:
        """Return a NumPy generator (PCG64) that no other `purpose`, `round_` or `client` shares, as for `key`."""
        return np.random.Generator(np.random.PCG64(self.key(purpose, round_, client)))

    def isolated(
        self, purpose: str, round_: int = 0, client: int = -1, device: torch.device | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """Seed the global generators of torch, NumPy, Python and a CUDA device in the block, and restore them after it,
        for code that takes no generator (initialisation, dropout). purpose, round_, client: as for `key`."""
        return self.resumable(purpose, round_, client, device).active(once=True)

    def resumable(
        self, purpose: str, round_: int = 0, client: int = -1, device: torch.device | None = None
    ) -> "GlobalGenerators":
        """Return `isolated` for several blocks that continue each other; purpose, round_, client, device: as there."""
        # A key has 128 bits; generators of torch take no more than 64.
        return GlobalGenerators(self.key(purpose, round_, client) & 0x7FFFFFFFFFFFFFFF, device)


class GlobalGenerators:
    """The states of the global generators of torch, NumPy, Python and a CUDA `device` for one user, such as a client in
    its round. They start from `seed`."""

    def __init__(self, seed: int, device: torch.device | None = None) -> None:
        self._seed = seed
        self._generators = _global_generators(device)
        self._states: tuple[Any, Any, list[torch.Tensor]] | None = None
        self._separate: torch.Generator | None = None

    @property
    def separate(self) -> torch.Generator:
        """A generator on the CPU with the state of torch's, for code outside `active`; both continue each other."""
        if self._separate is None:
            self._separate = torch.Generator().manual_seed(self._seed)
            if self._states is not None:
                self._separate.set_state(self._states[2][0])
        return self._separate

    @contextlib.contextmanager
    def active(self, *, once: bool = False) -> Iterator[None]:
        """Let the global generators continue from these states, and restore theirs after the block. With `once` no
        other block follows, so the states after this one need not be kept."""
        outer = _states_of(self._generators)
        if self._states is None:
            for generator in self._generators:
                generator.manual_seed(self._seed)
            random.seed(self._seed)
            # The global generator of NumPy takes seeds of 32 bits.
            np.random.seed(self._seed & 0xFFFFFFFF)  # noqa: NPY002
        else:
            _set_states(self._generators, self._states)
        if self._separate is not None:
            torch.default_generator.set_state(self._separate.get_state())
        try:
            yield
        finally:
            if not once:
                self._states = _states_of(self._generators)
            if self._separate is not None:
                self._separate.set_state(torch.default_generator.get_state())
            _set_states(self._generators, outer)


def _global_generators(device: torch.device | None) -> list[torch.Generator]:
    if device is None or device.type != "cuda":
        return [torch.default_generator]
    return [torch.default_generator, torch.cuda.default_generators[device.index or 0]]


def _states_of(generators: Sequence[torch.Generator]) -> tuple[Any, Any, list[torch.Tensor]]:
    return random.getstate(), np.random.get_state(), [generator.get_state() for generator in generators]  # noqa: NPY002


def _set_states(generators: Sequence[torch.Generator], states: tuple[Any, Any, list[torch.Tensor]]) -> None:
    python_state, numpy_state, torch_states = states
    random.setstate(python_state)
    np.random.set_state(numpy_state)  # noqa: NPY002
    for generator, state in zip(generators, torch_states, strict=True):
        generator.set_state(state)
