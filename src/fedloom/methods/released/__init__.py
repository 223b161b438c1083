"""What authors' released code computes where it departs from the paper, kept apart from the methods."""
