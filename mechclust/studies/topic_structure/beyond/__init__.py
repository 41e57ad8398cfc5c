"""What happens after the two stages, and with topics more like those of text (E5)."""
