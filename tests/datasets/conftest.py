from caching import own_cache, reads

__all__ = ["own_cache", "reads"]
