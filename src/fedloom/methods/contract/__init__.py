"""The contract of a method: its declaration, its hooks, and the types that they exchange with the engine.

Methods and plug-ins import all of it with one line, `import fedloom.methods as fm`.
"""
