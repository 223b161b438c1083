"""The five heterogeneous CNNs of FedSSA (Yi et al., IJCAI 2024, Table 3), also used by FedProto-style comparisons.

conv5x5 (c -> 16) ReLU pool2, conv5x5 (16 -> m) ReLU pool2, FC w ReLU, FC 500 ReLU | head 500 -> C. All share
d = 500, so that header rows of different clients can be averaged; only m and w differ. The paper assigns CNN-(k mod 5
+ 1) to client k: `fedloom.nets.groups`. Sizes in the docstrings are parameters x 4 bytes / 2^20 at C = 10.
"""

from __future__ import annotations

from fedloom.nets.net import MODELS
from fedloom.nets.two_conv import TwoConvNet


@MODELS.register("fedssa-cnn1")
class FedSSACNN1(TwoConvNet):
    """CNN-1 of FedSSA: m = 32 maps, FC 2000, FC 500; also the net of its homogeneous runs.

    At 3x32x32: 2,621,558 parameters with C = 10 (10.00 MiB, as printed), 2,666,648 with C = 100.
    """

    widths = (16, 32)
    hidden = (2000, 500)


@MODELS.register("fedssa-cnn2")
class FedSSACNN2(TwoConvNet):
    """CNN-2 of FedSSA: m = 16 maps, FC 2000, FC 500.

    At 3x32x32: 1,815,142 parameters with C = 10 (6.92 MiB, as printed), 1,860,232 with C = 100.
    """

    widths = (16, 16)
    hidden = (2000, 500)


@MODELS.register("fedssa-cnn3")
class FedSSACNN3(TwoConvNet):
    """CNN-3 of FedSSA: m = 32 maps, FC 1000, FC 500.

    At 3x32x32: 1,320,558 parameters with C = 10 (5.04 MiB, as printed), 1,365,648 with C = 100.
    """

    widths = (16, 32)
    hidden = (1000, 500)


@MODELS.register("fedssa-cnn4")
class FedSSACNN4(TwoConvNet):
    """CNN-4 of FedSSA: m = 32 maps, FC 800, FC 500.

    At 3x32x32: 1,060,358 parameters with C = 10 (4.04 MiB), 1,105,448 with C = 100. The paper prints 3.81 MB, which
    its own FC 800 does not give; the layers are kept, not the size.
    """

    widths = (16, 32)
    hidden = (800, 500)


@MODELS.register("fedssa-cnn5")
class FedSSACNN5(TwoConvNet):
    """CNN-5 of FedSSA: m = 32 maps, FC 500, FC 500; also the small model of FML and FedKD there.

    At 3x32x32: 670,058 parameters with C = 10 (2.56 MiB, printed as 2.55), 715,148 with C = 100.
    """

    widths = (16, 32)
    hidden = (500, 500)
