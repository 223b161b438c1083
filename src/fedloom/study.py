"""The former package `fedloom.study`: importing it says where its modules went."""

raise ImportError(
    "fedloom.study was split into fedloom.config, storage, export, results, runs and studies: parse is in "
    "fedloom.config.run_config, of_result in fedloom.export.trained, Result in fedloom.results.result"
)
