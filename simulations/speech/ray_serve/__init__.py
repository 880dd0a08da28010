"""The reference service as an application of Ray Serve, laid out as the field's guides lay out Whisper."""
