"""Floor 6: figures for papers, drawn from plain values. Importing `palette` loads no matplotlib; the others do."""
