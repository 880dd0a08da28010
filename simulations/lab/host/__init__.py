"""Programs and processes of the lab on this machine."""
