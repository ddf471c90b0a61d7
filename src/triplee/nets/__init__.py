"""The networks: digit CNN and projection head, built from a recipe."""
