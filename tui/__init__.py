"""What the operator touches: the terminal app and the command line. Imports the engine's light side only."""
