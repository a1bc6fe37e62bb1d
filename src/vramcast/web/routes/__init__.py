"""One file a page: what its addresses answer."""
