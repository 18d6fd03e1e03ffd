"""The language of `if:` and `${{ … }}`."""
