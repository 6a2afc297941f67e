"""Files and protos: reading, checking, writing, without losing anything."""
