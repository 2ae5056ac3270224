"""What opens above a screen and is dismissed with a result. May import Textual, the widgets and the light engine."""
