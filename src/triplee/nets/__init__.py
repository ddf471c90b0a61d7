"""The networks: digit CNN, ResNets and timm's models, pretrained weights and projection head, built from a recipe."""
