"""Advice on methods: which of them to try on a federation's data, by measured evidence and by a trial."""
