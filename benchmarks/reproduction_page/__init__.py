"""The pages docs/reproduction/*.md, made from the committed measurements in results/reproduction/."""
