"""The batched engine beside the serial one, for tests."""

from fedloom.engine.choose import DEFAULT_STACK
from fedloom.engine.stacked import Batched
from support import TinyBN, near, world

# Unequal sizes, a class that nobody has in some clients, a client smaller than a batch, one of a single sample.
UNEQUAL = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]


def stacked(worker):
    """The engine as it comes."""
    return Batched(worker, DEFAULT_STACK["cpu"])


class DoubleBN(TinyBN):
    """In float64, where rounding cannot hide a difference."""

    def __init__(self):
        super().__init__()
        self.double()

    def features(self, x):
        return super().features(x.double())


def agree(method, *, labels=UNEQUAL, rounds=2, tolerance=1e-5, engine=stacked, **settings):
    """Both engines through some rounds: the same counts, diagnostics and (nearly) numbers."""
    toys = [world(method, labels, batch_size=4, **settings) for _ in range(2)]
    toys[1].federation.engine = engine(toys[1].worker)
    for _ in range(rounds):
        serial, batched = (toy.federation.step() for toy in toys)
        assert (serial.steps, serial.samples, serial.bytes_up) == (batched.steps, batched.samples, batched.bytes_up)
        assert near(dict(serial.terms), dict(batched.terms), max(tolerance, 1e-5))
        assert [f.code for f in serial.diagnostics] == [f.code for f in batched.diagnostics]
    one, other = (toy.federation for toy in toys)
    assert near(one.server, other.server, tolerance)
    assert one.states.keys() == other.states.keys()
    assert all(near(one.states[client], other.states[client], tolerance) for client in one.states)
