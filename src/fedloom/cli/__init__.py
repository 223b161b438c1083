"""Commands of the command line, which `fedloom.cli.app` registers."""
