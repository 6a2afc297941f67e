"""Why rules do not fire: their reasons, where values come from, and what would say more."""
