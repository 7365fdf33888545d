"""`cesar network` and `cesar peer`: make a network of real peers, change it, and run one of its peers."""
