"""What-if over several clusters: where the streams of one product are served, hour by hour, and what that saves."""
