"""The runs of a store: listed, chosen, shown, compared, and removed where nothing refers to them."""
