"""The bounds that the five papers print, and the measured quantities that they contain."""
