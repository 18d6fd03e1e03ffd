"""Maps a URL to an engine, a hub and stores, and builds a Backstay from them."""
