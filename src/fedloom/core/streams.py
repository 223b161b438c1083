"""Random streams: every generator is derived from (seed, purpose, round, client).

Nothing draws from a global generator, so no result depends on the order in which clients, engines, runs or tests
happen to execute. Equal keys give equal streams, on every machine and in every process.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch


def generator_states() -> tuple[bytes, int, tuple[int, bytes]]:
    """Return the states of the global generators of torch, Python and NumPy, as values that can be compared."""
    _, key, position, *_ = np.random.get_state()  # noqa: NPY002
    numpy_state = int(position), np.asarray(key).tobytes()
    return torch.default_generator.get_state().numpy().tobytes(), hash(random.getstate()), numpy_state


@dataclass(frozen=True, slots=True)
class Streams:
    """The root of all randomness of one run.

    seed: any integer. All methods take the key of a stream: purpose (a word), round_ (0 is before the first round) and
    client (an id; -1 is the server).
    """

    seed: int

    def key(self, purpose: str, round_: int = 0, client: int = -1) -> int:
        """Return the 128-bit integer from which the stream starts."""
        packed = struct.pack("<qqq", self.seed & 0x7FFFFFFFFFFFFFFF, round_, client) + purpose.encode()
        return int.from_bytes(hashlib.blake2b(packed, digest_size=16).digest(), "little")

    def numpy(self, purpose: str, round_: int = 0, client: int = -1) -> np.random.Generator:
        """Return a NumPy generator (PCG64)."""
        return np.random.Generator(np.random.PCG64(self.key(purpose, round_, client)))

    @contextlib.contextmanager
    def isolated(
        self, purpose: str, round_: int = 0, client: int = -1, device: torch.device | None = None
    ) -> Iterator[None]:
        """Seed the global generators of torch, NumPy and Python in the block, and restore their states after it.

        For code that takes no generator: initialisation of modules, dropout layers, random numbers inside a loss.
        device: a CUDA device whose generator is seeded too.
        """
        seed = self.key(purpose, round_, client) & 0x7FFFFFFFFFFFFFFF
        generators = [torch.default_generator]
        if device is not None and device.type == "cuda":
            generators.append(torch.cuda.default_generators[device.index or 0])
        torch_states = [generator.get_state() for generator in generators]
        python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
        for generator in generators:
            generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002
            for generator, state in zip(generators, torch_states, strict=True):
                generator.set_state(state)
