"""What interactive pages have in common: their elements, colours and buttons, and how scripts get onto a page."""
