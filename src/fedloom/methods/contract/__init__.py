"""The contract of a method: its declaration, its hooks, and the types that they exchange with the engine."""
