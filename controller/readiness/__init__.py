"""What is known of a pipeline before its launch, as one page: numbers, their sources, and what blocks."""
