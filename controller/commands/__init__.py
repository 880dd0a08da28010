"""The commands that the controller contributes to the `sluice` program."""
