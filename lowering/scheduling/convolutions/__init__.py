"""Schedule rules of convolutions, pooling and depthwise convolutions."""
