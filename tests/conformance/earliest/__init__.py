"""Every unmatched row at the earliest moment, by exhaustion: the rules, the histories, and the walk through them."""
