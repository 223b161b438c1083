"""Floor 6.25: figures for papers and notebooks, drawn from plain values; knows neither runs nor files of runs.

Importing `fedloom.plots.palette` and `fedloom.plots.plot_data` loads no matplotlib; the other modules do.
"""
