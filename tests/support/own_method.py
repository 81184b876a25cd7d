"""A method of a user's own, as `docs/your-own-method.md` shows it."""
