"""Floor 5: what a run keeps on disk: its folder, its log, its checkpoints and client states."""
