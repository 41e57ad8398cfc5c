"""Code shared by interactive pages: their elements, colours and buttons, and how scripts get onto a page."""
