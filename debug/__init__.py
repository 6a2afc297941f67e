"""Commands that look into models and rewrites: inspect, check, and what they share."""
