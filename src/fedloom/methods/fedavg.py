import fedloom.methods as fm


@fm.register
class FedAvg(fm.Method):
    """FedAvg: average locally trained weights. McMahan et al., AISTATS 2017, arXiv 1602.05629.

    Every hook is the contract's default: weights and batch-norm statistics are averaged by samples."""

    spec = fm.Spec(labels="multi", late=True)
