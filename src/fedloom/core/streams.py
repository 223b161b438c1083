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


def states_of_generators() -> tuple[bytes, int, tuple[int, bytes]]:
    """The states of torch's, Python's and NumPy's generators of the process, as values that can be compared."""
    _, key, position, *_ = np.random.get_state()  # noqa: NPY002
    numpy = int(position), np.asarray(key).tobytes()
    return torch.default_generator.get_state().numpy().tobytes(), hash(random.getstate()), numpy


@dataclass(frozen=True, slots=True)
class Streams:
    """The root of all randomness of one run.

    `seed` may be any integer. `numpy` and `isolated` take a purpose (a word), a round (0 = before the first) and a
    client id (-1 = the server).
    """

    seed: int

    def key(self, purpose: str, round_: int = 0, client: int = -1) -> int:
        """The 128-bit integer from which the stream of this key starts."""
        packed = struct.pack("<qqq", self.seed & 0x7FFFFFFFFFFFFFFF, round_, client) + purpose.encode()
        return int.from_bytes(hashlib.blake2b(packed, digest_size=16).digest(), "little")

    def numpy(self, purpose: str, round_: int = 0, client: int = -1) -> np.random.Generator:
        """A NumPy generator (PCG64) for this key."""
        return np.random.Generator(np.random.PCG64(self.key(purpose, round_, client)))

    @contextlib.contextmanager
    def isolated(
        self, purpose: str, round_: int = 0, client: int = -1, device: torch.device | None = None
    ) -> Iterator[None]:
        """Within the block, torch's CPU generator runs this key's stream; afterwards it is as it was before.

        So do the generators of `numpy.random` and of `random`, which nets and losses of others may draw from. device: a
        CUDA device whose generator does the same. For code that takes no generator: parameter initialisation of any
        module, dropout layers, random numbers inside a loss.
        """
        seed = self.key(purpose, round_, client) & 0x7FFFFFFFFFFFFFFF
        generators = [torch.default_generator]
        if device is not None and device.type == "cuda":
            generators.append(torch.cuda.default_generators[device.index or 0])
        before = [generator.get_state() for generator in generators]
        plain, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
        for generator in generators:
            generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(plain)
            np.random.set_state(legacy)  # noqa: NPY002
            for generator, state in zip(generators, before, strict=True):
                generator.set_state(state)
