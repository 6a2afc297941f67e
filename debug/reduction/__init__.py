"""Makes a model smaller while it still shows something, bodies included."""
