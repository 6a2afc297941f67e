"""The exit statuses of commands other than 0, which means that there is nothing to report."""

from __future__ import annotations

FINDING = 1
"""The command found something: a difference, a bad commit, control flow that remains."""
ERROR = 2
"""The model or an option cannot be used, or a runtime does not accept the model."""
INTERNAL = 3
"""looplift itself failed: a defect of looplift, or of a user's rule that it did not handle."""
INTERRUPTED = 130
"""The user interrupted the command, as shells report it (128 + SIGINT)."""
UNREAD = 141
"""What reads the output has exited, as in `looplift … | head`: 128 + SIGPIPE."""
