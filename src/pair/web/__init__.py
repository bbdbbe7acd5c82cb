"""How pair reaches the network: downloads by name, and pages of the public web under guard."""
