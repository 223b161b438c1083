"""Floor 6.25: figures for papers and notebooks, drawn from plain values; knows neither runs nor files of runs.

Importing `names`, `palette` and `plot_data` of it loads no matplotlib; the other modules do.
"""
