"""What a model does in training mode: refused, named once, or nothing to say."""

import random
from collections import deque

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from fedloom.core.errors import ConfigError
from fedloom.nets import MODELS
from fedloom.nets.probe import check_entries, check_trains
from fedloom.nets.user_model import HeadlessNet, wrap

X = torch.rand(2, 6)


class Plain(nn.Module):
    """6 inputs, 4 features, 3 classes."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(6, 4), nn.Linear(4, 3)
        self.begin()

    def begin(self):
        pass

    def features(self, x):
        return self.first(x).relu()

    def forward(self, x):
        return self.head(self.features(x))


def remarks(module, batch_size=8, x=X):
    net = wrap(module, "head") if isinstance(getattr(module, "head", None), nn.Linear) else HeadlessNet(module)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    named = check_trains(net, x, 3, batch_size, "Mine")
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all("\n" not in remark.text for remark in named)
    return named


# -- state in Python -----------------------------------------------------------------------------------------------
class Counts(Plain):
    def begin(self):
        self.passes = 0

    def features(self, x):
        self.passes += 1
        return super().features(x) * (1 + 0.01 * self.passes)


class GrowsInADict(Plain):
    def begin(self):
        self.memory = {"means": deque(maxlen=2), "passes": {"of": [0]}}

    def features(self, x):
        self.memory["passes"]["of"][0] += 1
        return super().features(x)


class Averages(Plain):
    """A tensor that is no buffer."""

    def begin(self):
        self.mean = torch.zeros(4)

    def features(self, x):
        z = super().features(x)
        self.mean = 0.9 * self.mean + 0.1 * z.mean(0).detach()
        return z - self.mean


class AveragesInPlace(Plain):
    def begin(self):
        self.register_buffer("mean", torch.zeros(4), persistent=False)

    def features(self, x):
        z = super().features(x)
        self.mean.mul_(0.9).add_(z.detach().mean(0), alpha=0.1)
        return z - self.mean


class OwnGenerator(Plain):
    def begin(self):
        self.noise = np.random.default_rng(0)

    def features(self, x):
        return super().features(x) + float(self.noise.random())


class OwnTorchGenerator(Plain):
    def begin(self):
        self.noise = torch.Generator()

    def features(self, x):
        return super().features(x) + torch.rand(1, generator=self.noise)


class Flips(Plain):
    def begin(self):
        self.even = False

    def features(self, x):
        self.even = not self.even
        return super().features(x)


class InAPart(Plain):
    def begin(self):
        self.parts = nn.ModuleList([Counts()])

    def features(self, x):
        return super().features(x) + self.parts[0].features(x)


STATEFUL = {
    Counts: "passes",
    GrowsInADict: "memory",
    Averages: "mean",
    AveragesInPlace: "mean",
    OwnGenerator: "noise",
    OwnTorchGenerator: "noise",
    Flips: "even",
    InAPart: "parts.0.passes",
}


@pytest.mark.parametrize("kind", STATEFUL)
def test_state_in_python_is_named(kind):
    (remark,) = [one for one in remarks(kind()) if one.code == "model.python_state"]
    assert f"model Mine keeps state in Python: {STATEFUL[kind]} changed" in remark.text


COUNT = [0]


class Elsewhere(Plain):
    def features(self, x):
        COUNT[0] += 1
        return super().features(x) * COUNT[0]


def test_state_outside_modules_is_named_where_it_changes_outputs():
    assert "model.hidden_state" in [remark.code for remark in remarks(Elsewhere())]


# -- nothing to say ------------------------------------------------------------------------------------------------
class Recurrent(Plain):
    def begin(self):
        self.first = nn.LSTM(6, 4, batch_first=True)

    def features(self, x):
        return self.first(x.unsqueeze(1))[0][:, 0]


class Normed(Plain):
    def begin(self):
        self.first = parametrizations.weight_norm(nn.Linear(6, 4))
        self.norm = nn.BatchNorm1d(4)

    def features(self, x):
        return self.norm(super().features(x))


class Spectral(Plain):
    def begin(self):
        self.first = nn.utils.spectral_norm(nn.Linear(6, 4))


class Remembers(Plain):
    """Its last output, for whoever looks at it."""

    def features(self, x):
        self.last = super().features(x)
        return self.last


class Caches(Plain):
    """What the first pass computes once."""

    def begin(self):
        self.ramp, self.shapes = None, {}

    def features(self, x):
        if self.ramp is None:
            self.ramp = torch.linspace(0, 1, x.shape[1])
        self.shapes[tuple(x.shape)] = True
        return super().features(x * self.ramp)


class Buffers(Plain):
    """A buffer that is replaced in every pass, and one that counts in place."""

    def begin(self):
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def features(self, x):
        z = super().features(x)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * z.detach().mean(0)
            self.passes += 1
        return z - self.mean


class Drops(Plain):
    def begin(self):
        self.drop = nn.Dropout(0.5)

    def features(self, x):
        self.last = self.drop(super().features(x)) + float(np.random.random()) * self.training  # noqa: NPY002
        return self.last + random.random() * self.training


class Frozen(Plain):
    def begin(self):
        self.first.requires_grad_(False)


@pytest.mark.parametrize("kind", [Plain, Recurrent, Normed, Spectral, Remembers, Caches, Buffers, Drops])
def test_there_is_nothing_to_say_of(kind):
    assert remarks(kind()) == []


def test_nets_of_the_library_are_not_tried():
    net = MODELS.get("mlp")(input_shape=(6,), num_classes=3)
    assert check_trains(net, X, 3, 8, "mlp") == []


# -- named ---------------------------------------------------------------------------------------------------------
class Unused(Plain):
    def begin(self):
        self.other = nn.Linear(2, 2)


class WithoutGradient(Plain):
    def features(self, x):
        with torch.no_grad():
            return super().features(x)


class InAList(Plain):
    def begin(self):
        self.layers = [nn.Linear(4, 4)]

    def features(self, x):
        return self.layers[0](super().features(x))


class Loose(Plain):
    def begin(self):
        self.shift = torch.zeros(4, requires_grad=True)

    def features(self, x):
        return super().features(x) + self.shift


class AlwaysDrops(Plain):
    def features(self, x):
        return functional.dropout(super().features(x))


class Probabilities(Plain):
    def forward(self, x):
        return super().forward(x).softmax(1)


NAMED = {
    Unused: ("model.unused_parameters", "other.weight, other.bias"),
    WithoutGradient: ("model.unused_parameters", "first.weight, first.bias"),
    InAList: ("model.unregistered", "layers holds weights that are not registered"),
    Loose: ("model.unregistered", "shift holds weights"),
    AlwaysDrops: ("model.random_tests", r"needs training=self.training"),
}


@pytest.mark.parametrize("kind", NAMED)
def test_what_is_seldom_meant_is_named(kind):
    code, words = NAMED[kind]
    (remark,) = remarks(kind())
    assert remark.code == code
    assert words in remark.text


def test_probabilities_are_named_where_the_softmax_is_part_of_the_net():
    (remark,) = check_trains(HeadlessNet(Probabilities()), X, 3, 8, "Mine")
    assert remark.code == "model.probabilities"
    assert check_trains(HeadlessNet(Plain()), X, 3, 8, "Mine") == []
    assert check_trains(wrap(Probabilities(), "head"), X, 3, 8, "Mine") == []


# -- refused -------------------------------------------------------------------------------------------------------
class InPlace(Plain):
    def features(self, x):
        return super().features(x.sub_(0.5))


class Detached(Plain):
    def forward(self, x):
        return super().forward(x).detach()

    def features(self, x):
        return super().features(x)


class TwoOutputs(Plain):
    def forward(self, x):
        out = super().forward(x)
        return (out, out) if self.training else out


class MoreOutputs(TwoOutputs):
    def forward(self, x):
        out = Plain.forward(self, x)
        return torch.cat([out, out], 1) if self.training else out


REFUSED = {
    InPlace: "changes its input in place",
    Detached: "its logits depend on nothing that trains",
    TwoOutputs: r"gives a tuple in training mode: it must give logits \[2, 3\]",
    MoreOutputs: r"gives \[2, 6\] in training mode",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_work_is_refused_in_one_line(kind):
    with pytest.raises(ConfigError, match=f"model Mine:? {REFUSED[kind]}") as caught:
        check_trains(HeadlessNet(kind()), X, 3, 8, "Mine")
    assert "\n" not in str(caught.value)


def test_batch_norm_needs_two_samples():
    with pytest.raises(ConfigError, match=r"batch_size = 1: model Mine has batch norm, .* set batch_size to 2 or more"):
        remarks(Normed(), batch_size=1)
    assert remarks(Normed(), batch_size=2) == []
    assert remarks(Plain(), batch_size=1) == []


def test_batch_norm_over_places_trains_on_one_sample():
    net = MODELS.get("digits-cnn")(input_shape=(1, 8, 8), num_classes=3)
    assert check_trains(net, torch.rand(2, 1, 8, 8), 3, 1, "digits-cnn") == []


class Complex(Plain):
    def begin(self):
        self.turn = nn.Parameter(torch.ones(4, dtype=torch.complex64))


class Hooked(Plain):
    def begin(self):
        self.first.weight.register_hook(lambda gradient: gradient * 0)


class Locked(Plain):
    def begin(self):
        self.lock = (one for one in ())


ENTRIES = {
    Complex: "turn is complex64, which is neither averaged nor stored; .*view_as_real",
    Hooked: r"first\.weight has a hook",
    Locked: "cannot be copied, .*TypeError",
}


@pytest.mark.parametrize("kind", ENTRIES)
def test_what_cannot_be_sent_or_copied_is_refused_in_one_line(kind):
    with pytest.raises(ConfigError, match=f"model Mine: .*{ENTRIES[kind]}|model Mine: {ENTRIES[kind]}") as caught:
        check_entries(wrap(kind(), "head"), "Mine")
    assert "\n" not in str(caught.value)


def test_a_compiled_module_is_refused():
    with pytest.raises(ConfigError, match="it is compiled"):
        check_entries(HeadlessNet(torch.compile(Plain(), backend="eager")), "Mine")
