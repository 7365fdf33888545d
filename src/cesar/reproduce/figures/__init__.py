"""One module for each table and figure of the paper; `cesar.reproduce.catalogue` lists them."""
