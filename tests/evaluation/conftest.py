from caching import shared_cache

__all__ = ["shared_cache"]
