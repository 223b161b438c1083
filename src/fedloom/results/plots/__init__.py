"""Floor 6: figures for papers and notebooks, drawn from plain values; knows neither runs nor files of runs.

Importing its modules `names`, `palette` and `plot_data` loads no matplotlib; importing the others does.
"""
