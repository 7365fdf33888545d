"""Every table and figure of the paper by one command each, with our own settings beside the paper's."""
