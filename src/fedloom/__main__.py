"""`python -m fedloom` is the command `fedloom`."""

from fedloom.cli.app import main

main()
