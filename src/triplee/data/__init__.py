"""Images in: the embedded digits or any folder, decoded once into a resident pool, split into source and target."""
