"""Floor 7: a config's run as a real federation. Flower provides transport, TLS and keys; the rest is fedloom's.
`remote.py` is an engine like the others, so the round loop, the methods and the order of sums stay where they are;
`node.py` is the client's side. They exchange messages (`wire.py`) over a transport (`transport.py`), which, with
`apps.py`, is the only file that knows Flower, by its public names."""
