import fedloom.methods as fm


@fm.register
class LGFedAvg(fm.Method):
    """LG-FedAvg: a shared head over private bodies. Liang et al., 2020, arXiv 2001.01523.

    Down: the head.   Up: the head, number of samples.   Server: mean of heads by samples (Algorithm 1).
    Body and head are trained together. Clients may have different bodies, if their heads have the same shapes.
    A client is tested with its own body and the server's head.
    """

    spec = fm.Spec(requires=("same_heads",), private=fm.ALL_ROLES - {fm.Role.HEAD}, architectures="any")
    citation = fm.Citation(
        "Liang et al., preprint 2020, arXiv 2001.01523", traffic=("H", "H", "B"), compared_in=("fedssa",)
    )
