"""Learning: data, models and local training. Nothing here knows of masks or frames."""
