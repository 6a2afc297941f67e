"""Rules about Loop: how often it runs, what it carries, reads and collects."""
