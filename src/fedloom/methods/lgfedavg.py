import fedloom.methods as fm


@fm.register
class LGFedAvg(fm.Method):
    """LG-FedAvg: a shared head over private bodies, which may differ. Liang et al., 2020, arXiv 2001.01523, Alg. 1."""

    spec = fm.Spec(requires=("same_heads",), private=fm.ALL_ROLES - {fm.Role.HEAD}, architectures="any", labels="multi")
