"""What the engines that run eager PyTorch share: recipes, passes, states, phases."""
