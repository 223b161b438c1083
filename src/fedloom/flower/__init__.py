"""Floor 7: a config's run as a real federation. Flower brings transport, TLS and keys; this, all that is fedloom's.

`remote.py` is an engine like the others: the round loop, the methods and the order of sums stay where they are.
`node.py` is the client's side of it. They exchange letters (`wire.py`) over a link (`transport.py`). Data that a node
alone can read come in by `node_data.py`, and `moments.py` standardises them. `grid.py` and `apps.py` are the only files
that know Flower, by its public names. How a run is, `status.py` keeps in its folder, and `logs.py` tells line by line.
"""
