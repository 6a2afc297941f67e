"""Schedule rules of reductions: softmax, norms, sums, means and extremes."""
