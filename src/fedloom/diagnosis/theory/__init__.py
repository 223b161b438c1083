"""The papers' theorems, lemmas and bounds as functions of quantities that a run can measure."""
