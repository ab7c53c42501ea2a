"""The lab: recipes, networks, data sets and the one engine that trains them."""
