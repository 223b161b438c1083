import fedloom.methods as fm


@fm.register
class FedAvg(fm.Method):
    """FedAvg: average locally trained weights. McMahan et al., AISTATS 2017, arXiv 1602.05629.

    Every hook is the contract's default. Weights are averaged over the round's participants, weighted by their numbers
    of samples; batch-norm statistics are averaged like weights, counters are not.
    """

    citation = fm.Citation(
        "McMahan et al., AISTATS 2017, arXiv 1602.05629", compared_in=("fedskc", "fedsc", "feddw", "fedco2")
    )
