"""What carries messages between a coordinator and sites."""
