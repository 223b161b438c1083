"""The contract of a method: declaration, hooks, and their types. Import it with `import fedloom.methods as fm`."""
