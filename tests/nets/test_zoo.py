"""Every net of the five papers has the layers it claims: parameter counts, feature widths, roles; and `wrap`."""

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.nets import MODELS, Net, build, wrap
from fedloom.nets.deep_cnns import BasicBlock
from fedloom.nets.loaded_net import MODEL_GROUPS, group_of
from fedloom.nets.net import Role, has_batch_norm, tag_roles, tree_of

CIFAR, GREY, BIG, TEXT = (3, 32, 32), (1, 28, 28), (3, 256, 256), (20,)
NO_BIAS = {"head_bias": False}
NO_NORM = {"fc_norm": False}


@dataclass(frozen=True)
class Case:
    """A net at its paper's size; `source` says where the count is printed, or how it is computed by hand."""

    name: str
    shape: tuple[int, ...]
    classes: int
    width: int
    parameters: int
    source: str
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return "-".join([self.name, str(self.classes), *self.options])


DW, DW_JSON = "FedDW spec A5", "feddw_models_params_bias_free_head"
SSA = "FedSSA spec B4, json fedssa_models"
CASES = [
    Case("feddw-mnist-cnn", GREY, 10, 128, 121_632, f"{DW}, {DW_JSON}", NO_BIAS),
    Case("feddw-mnist-cnn", GREY, 10, 128, 121_632 + 10, "the same with the baselines' bias"),
    Case("feddw-cifar-cnn", CIFAR, 10, 128, 139_704, f"{DW}, {DW_JSON}", NO_BIAS),
    Case("feddw-fashion-cnn", GREY, 10, 128, 416 + 32 + 12_832 + 64 + 401_664 + 32_896 + 1_280, "by hand", NO_BIAS),
    Case("resnet18-cifar", CIFAR, 100, 128, 11_350_656, f"{DW}, {DW_JSON}", NO_BIAS),
    Case("shufflenet-cifar", CIFAR, 100, 128, 1_130_324, f"{DW}, {DW_JSON}", NO_BIAS),
    Case("mobilenetv2-half", CIFAR, 100, 128, 807_560, f"{DW}, {DW_JSON}", NO_BIAS),
    Case("bilstm", TEXT, 2, 128, 1_593_856, f"{DW}, {DW_JSON}", NO_BIAS),
    Case("resnet8", CIFAR, 10, 256, 1_227_594, "FedSKC spec part C"),
    Case("resnet10", CIFAR, 10, 512, 4_903_242, "FedSC spec part C"),
    Case("emnist-cnn", GREY, 47, 512, 832 + 51_264 + 524_800 + 513 * 47, "by hand"),
    # torchvision's MobileNetV2 has 2,223,872 before its classifier; the last convolution shrinks from 1280 to 512.
    Case("mobilenetv2-512", (3, 64, 64), 200, 512, 2_223_872 - 322 * 768 + 513 * 200, "from torchvision's count"),
    Case("conv4", CIFAR, 60, 256, 113_088 + 257 * 60, "the known 113,088 of Conv-4, and the head"),
    Case("fedco2-cnn", CIFAR, 10, 84, 121_182, "Fed-CO2 spec section 1"),
    Case("fedco2-cnn", CIFAR, 100, 84, 128_832, "Fed-CO2 spec section 1"),
    Case("fedco2-cnn-bn", CIFAR, 10, 84, 121_182 + 504, "Fed-CO2 spec section 1"),
    Case("fedbn-digits-cnn", (3, 28, 28), 10, 512, 14_213_578 + 5_632, "Fed-CO2 spec section 1, and BN"),
    Case("fedbn-digits-cnn", (3, 28, 28), 10, 512, 14_213_578 + 512, "the same, BN in convolutions only", NO_NORM),
    Case("fedbn-alexnet", BIG, 10, 4096, 57_044_810 + 18_688, "Fed-CO2 spec section 1, and BN"),
    Case("fedbn-alexnet", BIG, 10, 4096, 57_044_810 + 2_304, "the same, BN in convolutions only", NO_NORM),
    Case("fedssa-cnn1", CIFAR, 10, 500, 2_621_558, SSA),
    Case("fedssa-cnn1", CIFAR, 100, 500, 2_666_648, SSA),
    Case("fedssa-cnn2", CIFAR, 10, 500, 1_815_142, SSA),
    Case("fedssa-cnn2", CIFAR, 100, 500, 1_860_232, SSA),
    Case("fedssa-cnn3", CIFAR, 10, 500, 1_320_558, SSA),
    Case("fedssa-cnn3", CIFAR, 100, 500, 1_365_648, SSA),
    Case("fedssa-cnn4", CIFAR, 10, 500, 1_060_358, SSA),
    Case("fedssa-cnn4", CIFAR, 100, 500, 1_105_448, SSA),
    Case("fedssa-cnn5", CIFAR, 10, 500, 670_058, SSA),
    Case("fedssa-cnn5", CIFAR, 100, 500, 715_148, SSA),
    Case("mlp", GREY, 10, 200, 785 * 200 + 201 * 10, "784-200-10"),
    Case("mlp", GREY, 10, 64, 785 * 128 + 129 * 64 + 64 * 10, "FedDW Fig. 5", {"hidden": [128, 64], **NO_BIAS}),
    Case("mlp-128", GREY, 10, 128, 785 * 128 + 129 * 10, "784-128-10"),
    Case("logistic", GREY, 10, 784, 7_850, "785 x 10"),
    Case("digits-cnn", (1, 8, 8), 10, 64, 160 + 4_640 + 513 * 64 + 65 * 10, "by hand"),
    Case("lenet5", GREY, 10, 84, 61_706, "LeNet-5's well-known count"),
    Case("lenet5", CIFAR, 10, 84, 456 + 2_416 + 401 * 120 + 121 * 84 + 85 * 10, "by hand"),
    Case("lenet5-bn", GREY, 10, 84, 61_706 + 2 * 6 + 2 * 16, "the same and BN"),
]
# The smallest inputs that the deep nets accept keep the CPU tests short.
TINY = {
    "bilstm": (5,),
    "conv4": (3, 16, 16),
    "resnet8": (3, 8, 8),
    "resnet10": (3, 8, 8),
    "resnet18-cifar": (3, 8, 8),
    "shufflenet-cifar": (3, 8, 8),
    "mobilenetv2-half": (3, 8, 8),
    "mobilenetv2-512": (3, 16, 16),
    "fedbn-digits-cnn": (3, 8, 8),
    "fedbn-alexnet": (3, 63, 63),
    "logistic": (2, 3, 4),
}
SHAPES = {case.name: TINY.get(case.name, case.shape) for case in CASES}


def make(name: str, shape: tuple[int, ...], classes: int = 4, seed: int = 0, **options: Any) -> Net:
    return build(name, input_shape=shape, num_classes=classes, streams=Streams(seed), **options)


def inputs(shape: tuple[int, ...], batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if len(shape) == 1:
        return torch.randint(0, 10_000, (batch, *shape), generator=generator)
    return torch.randn(batch, *shape, generator=generator)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_parameter_count_feature_shape_and_roles(case: Case) -> None:
    with torch.device("meta"):
        net = make(case.name, case.shape, case.classes, **case.options)
        x = torch.zeros(2, *case.shape, dtype=torch.int64 if case.name == "bilstm" else torch.float32)
        z, logits = net.eval().features(x), net(x)
    assert sum(p.numel() for p in net.parameters()) == case.parameters, case.source
    assert z.shape == (2, case.width) == (2, net.head.in_features)
    assert logits.shape == (2, case.classes)
    roles = net.roles()
    assert list(roles) == list(net.state_dict())
    head = [name for name, role in roles.items() if role is Role.HEAD]
    assert head == (["head.weight"] if case.options.get("head_bias") is False else ["head.weight", "head.bias"])
    norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]
    assert sum(role is Role.BN_AFFINE for role in roles.values()) == 2 * len(norms)
    assert sum(role is Role.COUNTER for role in roles.values()) == len(norms) == has_batch_norm(net) * len(norms)


@pytest.mark.parametrize("name", SHAPES)
def test_one_step_in_both_modes(name: str) -> None:
    shape = SHAPES[name]
    net, x = make(name, shape), inputs(shape)
    for training in (True, False):
        net.train(training)
        logits = net(x)
        gradients = torch.autograd.grad(nn.functional.cross_entropy(logits, torch.tensor([0, 3])), [*net.parameters()])
        assert all(bool(g.isfinite().all()) for g in gradients)
        assert float(gradients[-1].abs().max()) > 0
    z = net.features(x)  # still in evaluation mode: no dropout, no batch statistics
    assert torch.equal(net.head(z), logits)
    assert net(x[:1]).shape == (1, 4)
    torch.testing.assert_close(net(x[:1]), logits[:1], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", SHAPES)
def test_a_net_in_bfloat16_trains_close_to_float32_and_is_tested_in_it(name: str) -> None:
    net, x = make(name, SHAPES[name]), inputs(SHAPES[name])
    exact = net.eval()(x)
    net.in_bfloat16 = True
    assert torch.equal(net(x), exact)
    loss = nn.functional.cross_entropy(net.train()(x), torch.tensor([0, 3]))
    gradients = torch.autograd.grad(loss, [*net.parameters()])
    assert loss.dtype == net.features(x).dtype == net.maps(x).dtype == torch.float32
    assert all(g.dtype == torch.float32 and bool(g.isfinite().all()) for g in gradients)


@pytest.mark.parametrize("name", ["lenet5", "lenet5-bn", "mlp", "resnet8"])
def test_features_in_bfloat16_are_close_to_those_in_float32(name: str) -> None:
    net, x = make(name, CIFAR).train(), inputs(CIFAR, batch=16)
    exact = net.features(x).detach()
    net.in_bfloat16 = True
    rounded = net.features(x).detach()
    assert 0 < float((rounded - exact).norm() / exact.norm()) < 0.02


@pytest.mark.parametrize("shape", [(3, 5, 7), (1, 4, 4)])
@pytest.mark.parametrize("batch", [1, 2])
def test_small_and_odd_images_fit_the_digits_net(shape: tuple[int, ...], batch: int) -> None:
    assert make("digits-cnn", shape)(torch.randn(batch, *shape)).shape == (batch, 4)


@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 28, 28), (1, 16, 40), (1, 28, 20)])
def test_other_images_fit_lenet(shape: tuple[int, ...]) -> None:
    assert make("lenet5", shape)(torch.randn(2, *shape)).shape == (2, 4)


NO_IMAGES = [(), (64,), (28, 28), (1, 28, 2), (1, 2, 28), (1, 1, 28, 28)]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("feddw-cifar-cnn", (3, 15, 32)),
        ("feddw-fashion-cnn", (1, 3, 3)),
        ("resnet10", (3, 7, 8)),
        ("resnet8", (32, 32)),
        ("shufflenet-cifar", (3, 4, 4)),
        ("mobilenetv2-half", (0, 32, 32)),
        ("conv4", (3, 8, 8)),
        ("fedbn-digits-cnn", (3, 3, 28)),
        ("fedbn-alexnet", (3, 62, 62)),
        ("bilstm", (3, 32, 32)),
        *((name, shape) for name in ("digits-cnn", "lenet5", "lenet5-bn") for shape in NO_IMAGES),
    ],
)
def test_a_shape_that_does_not_fit_is_one_clear_line(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match=r"needs (images|token ids)") as raised:
        make(name, shape)
    assert str(shape) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "shape", "options"), [("mlp", GREY, {"hidden": [200, 0]}), ("bilstm", TEXT, {"vocabulary": 0})]
)
def test_an_option_that_does_not_fit_is_refused(name: str, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"1 (or more|to 1,000,000)"):
        make(name, shape, **options)


def test_the_tree_of_a_net_is_its_live_tensors() -> None:
    net = make("lenet5-bn", GREY)
    tree = tree_of(net)
    assert list(tree) == list(net.state_dict())
    tree["head.bias"].fill_(7)
    assert net.head.bias.tolist() == [7.0] * 4
    assert not tree["head.bias"].requires_grad


def test_a_net_without_features_says_so() -> None:
    class Unfinished(Net):
        pass

    with pytest.raises(TypeError, match=r"Unfinished defines no features\(x\)"):
        Unfinished().features(torch.zeros(1))


def test_resnet8_starts_as_in_the_released_code() -> None:
    net = make("resnet8", CIFAR)
    weight = next(m for m in reversed([*net.modules()]) if isinstance(m, BasicBlock)).conv2[0].weight
    assert float(weight.detach().std()) == pytest.approx((2 / (9 * 256)) ** 0.5, rel=0.02)


@pytest.mark.parametrize("name", ["fedbn-digits-cnn", "fedbn-alexnet"])
def test_classifier_block_is_the_papers_cls(name: str) -> None:
    with torch.device("meta"):
        net = make(name, (3, 28, 28) if "digits" in name else BIG, 10)
        maps = net.maps(torch.zeros(2, 3, 28, 28) if "digits" in name else torch.zeros(2, *BIG))
    entries = {k: v for k, v in net.state_dict().items() if k.split(".")[0] in net.classifier_block}
    assert {k.split(".")[0] for k in entries} == {"fc", "head"}
    floats = sum(v.numel() for v in entries.values() if v.is_floating_point())
    digits = "digits" in name
    assert floats == (13_911_562 if digits else 54_607_882), "Fed-CO2 spec section 1: one head with its BN entries"
    assert maps.shape == (2, 6272 if digits else 9216)
    outside = sum(p.numel() for k, p in net.named_parameters() if tag_roles(net, "head")[k] is not Role.BN_AFFINE)
    assert outside == (14_213_578 if digits else 57_044_810), "Fed-CO2 spec section 1: shared"


def test_classifier_block_computes_the_logits() -> None:
    net, x = make("fedbn-digits-cnn", (3, 8, 8)).eval(), inputs((3, 8, 8))
    assert torch.equal(net.classify(net.maps(x)), net(x))


def test_groups() -> None:
    names = MODEL_GROUPS["fedssa-cnn"]
    assert [names[group_of(k, names)] for k in (0, 4, 5, 11)] == [
        "fedssa-cnn1",
        "fedssa-cnn5",
        "fedssa-cnn1",
        "fedssa-cnn2",
    ]
    for group in MODEL_GROUPS:
        assert all(name in MODELS for name in MODEL_GROUPS[group])
    assert len({make(name, CIFAR).head.weight.shape for name in names}) == 1


class Theirs(nn.Module):
    """A user's net: nested names, dropout, a buffer, and optionally layers after its head."""

    def __init__(self, *, softmax: bool = False) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten())
        self.top = nn.ModuleDict({"drop": nn.Dropout(0.5), "fc": nn.Linear(12, 5), "out": nn.Linear(5, 4)})
        self.softmax = softmax

    def forward(self, x: Tensor) -> Tensor:
        x = self.top["drop"](self.stem(x))
        x = self.top["out"](self.top["fc"](x).relu())
        return x.softmax(-1) if self.softmax else x


SMALL = (1, 4, 4)


def test_wrapped_net_computes_what_the_module_does() -> None:
    theirs, x = Theirs(), inputs(SMALL)
    net = wrap(theirs, "top.out")
    for training in (False, True):
        theirs.train(training)
        net.train(training)
        with torch.random.fork_rng():
            torch.manual_seed(3)
            expected = theirs(x)
            torch.manual_seed(3)
            assert torch.equal(net(x), expected)
    net.eval()
    assert net.features(x).shape == (2, 5)
    assert torch.equal(net.head(net.features(x)), theirs.eval()(x))


def test_wrapped_net_shares_every_tensor_and_changes_nothing() -> None:
    theirs = Theirs()
    before = [*theirs.state_dict()]
    net = wrap(theirs, "top.out")
    assert net.head is theirs.top["out"]
    assert [*theirs.state_dict()] == before
    kept = {n.removeprefix("body."): v for n, v in net.state_dict(keep_vars=True).items()}
    own = {n.replace("top.out", "head"): v for n, v in theirs.state_dict(keep_vars=True).items()}
    assert kept.keys() == own.keys()
    assert all(kept[name] is own[name] for name in own)
    roles = tag_roles(net, "head")
    assert [n for n, role in roles.items() if role is Role.HEAD] == ["head.weight", "head.bias"]
    assert roles["body.stem.1.running_mean"] is Role.BN_STAT
    net.load_state_dict({n: torch.zeros_like(v) for n, v in net.state_dict().items()})
    assert all(float(p.detach().abs().sum()) == 0 for p in theirs.parameters())


def test_wrapped_net_stops_at_the_head() -> None:
    plain, soft, x = Theirs(), Theirs(softmax=True), inputs(SMALL)
    soft.load_state_dict(plain.state_dict())
    assert torch.equal(wrap(soft.eval(), "top.out")(x), plain.eval()(x))
    inner = wrap(plain, "top.fc")
    assert inner.features(x).shape == (2, 12)
    assert torch.equal(inner.features(x), plain.stem(x))


def test_copies_of_a_wrapped_net_are_independent() -> None:
    net = wrap(Theirs().eval(), "top.out")
    twin, x = copy.deepcopy(net), inputs(SMALL)
    expected = net(x).detach()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(1)
    assert torch.equal(twin(x), expected)
    assert not torch.equal(net(x), expected)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("top.ouf", "there is no layer 'top.ouf', the head must be an nn.Linear: did you mean 'top.out'"),
        ("top.drop", "'top.drop' is a Dropout, the head must be an nn.Linear: known: "),
        ("stem", "'stem' is a Sequential, the head must be an nn.Linear: known: top.fc, top.out"),
        ("", "there is no layer ''"),
    ],
)
def test_wrapping_at_no_linear_layer_is_refused(head: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        wrap(Theirs(), head)
    assert "\n" not in str(raised.value)


def test_wrapping_a_layer_that_is_never_called_is_refused() -> None:
    theirs = Theirs()
    theirs.unused = nn.Linear(2, 2)
    with pytest.raises(ConfigError, match="never calls"):
        wrap(theirs, "unused")(inputs(SMALL))
