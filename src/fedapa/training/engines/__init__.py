"""What runs the training steps: PyTorch, vmap over clients, a native kernel."""
