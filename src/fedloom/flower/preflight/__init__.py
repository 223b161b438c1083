"""Checks before a server or a node starts: addresses, certificates, clocks, versions, ports, disks and files."""
