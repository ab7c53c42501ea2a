"""Recipes: everything that defines a run, and the values that a recipe is composed of."""
