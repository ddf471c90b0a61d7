"""The networks, built from a recipe: digit CNN, ResNets, MobileNetV2, timm's; pretrained weights, projection head."""
