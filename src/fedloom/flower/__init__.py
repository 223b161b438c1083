"""Floor 7: a config's run as a real federation. Flower provides transport, TLS and keys; the rest is fedloom's.
`remote.py` is an engine like the others, so the round loop, the methods and the order of sums stay where they are;
`node.py` is the client's side. They exchange messages (`wire.py`) over links (`links.py`), which outlast lost messages.
A node keeps one process (`resident.py`). Only this file, `transport.py`, `message.py` and `apps.py` know Flower."""
