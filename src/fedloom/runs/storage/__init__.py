"""Floor 5: a run on disk: its folder, its log, its checkpoints and client states."""
