"""The only round loop and what it needs: messages, membership, upload limits, evaluation."""
